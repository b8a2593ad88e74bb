"""Tests of `attnkit check`: the table of contracts, and reports of mechanisms that break one."""

import json
from functools import partial
from pathlib import Path

import pytest
from helpers.cli import Cli

from attnkit.contract import CONTRACTS
from attnkit.recipe import mechanism_registry

PLUGIN = '''"""Mine: A = softmax({formula}).

Source: a test, 2026.
"""

from attnkit.attention import Scored


class Mine(Scored):
    """As the file says."""
{body}
    def scores(self, q, k, mask):
        """Scores."""
        return {formula}
'''
PEEKS = """
    def allowed(self, mask):
        \"\"\"One key too many.\"\"\"
        return mask._replace(q_pos=mask.q_pos + 1).dense()
"""


@pytest.fixture
def check(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit check` in an empty folder."""
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(mechanism_registry, "_plugged", {})
    return partial(cli, "check")


def write_plugin(formula: str = "q @ k.transpose(-1, -2)", body: str = "") -> None:
    Path("mine.py").write_text(PLUGIN.format(formula=formula, body=body))


def test_shipped_mechanism_keeps_every_contract(check: Cli) -> None:
    _, out, err = check("synthesizer-random", "trainable=false")
    assert err == "synthesizer-random trainable=false keeps the contract\n"
    rows = {words[0]: words for words in map(str.split, out.splitlines()) if words}
    assert out.startswith("synthesizer-random trainable=false\n")
    assert rows["contract"] == ["contract", "promise", "encoder", "decoder", "cross"]
    assert rows["limits"][-6:] == ["kept", "0", "kept", "0", "kept", "0"]
    assert rows["beams"][-3:] == ["-", "-", "-"]
    assert {contract.name for contract in CONTRACTS} <= rows.keys()


@pytest.mark.slow
def test_every_layer_of_interleaved_mechanisms_is_measured(check: Cli) -> None:
    write_plugin(body=PEEKS)
    _, out, err = check("interleaved", "parts=[scaled-dot,mine]", "--plugin", "mine.py", code=1)
    assert "broken, decoder: future: layer 1: length 2, layout any, after token 0: later tokens have" in err
    assert err.count("to fix future: give a key the weight 0 where ") == 1
    assert "encoder" not in err
    rows = {words[0]: words for words in map(str.split, out.splitlines()) if words}
    assert "broken" in rows["future"]
    assert rows["worked"][-6:-1:2] == ["kept"] * 3  # of scaled-dot; the plug-in has no worked number


@pytest.mark.slow
def test_correct_plug_in_needs_no_worked_number(check: Cli) -> None:
    write_plugin()
    out = check("mine", "--plugin", "mine.py", "--format", "json").out
    rows = {row["contract"]: row for row in json.loads(out)["rows"]}
    assert rows["map"]["cross"] == "kept"
    assert rows["map"]["cross_error"] < 1e-12
    assert rows["worked"]["encoder"] == "not applicable"
    assert rows["worked"]["encoder_text"] == "the class has no worked number"
    assert rows["cached"]["encoder_error"] is None


def test_plug_in_that_raises_breaks_the_contract(check: Cli) -> None:
    write_plugin(formula="q @ k")
    err = check("mine", "--plugin", "mine.py", "--format", "csv", code=1).err
    assert "broken, encoder: map: RuntimeError: " in err
    assert "to fix" not in err
    assert "bug" not in err
