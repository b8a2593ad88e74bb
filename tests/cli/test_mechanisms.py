"""Tests of `attnkit mechanisms`: the list, single mechanisms, and the facts in every mechanism's file."""

import csv
import io
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.cli import Cli

from attnkit import mechanisms
from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.recipe import mechanism_registry

WORDS = mechanisms.names()


@pytest.fixture
def run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run `attnkit mechanisms` on a wide screen."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(mechanism_registry, "_plugged", {})
    return partial(cli, "mechanisms")


@pytest.mark.parametrize("word", WORDS)
def test_every_file_has_a_formula_a_source_and_a_worked_number(word: str) -> None:
    facts = mechanisms.facts(word)
    first = facts.doc.partition("\n")[0]
    message = f"{facts.path}: the first line of the docstring must be `Title: formula.`"
    assert first == f"{facts.title}: {facts.formula}.", message
    assert facts.title, message
    assert len(facts.formula) > 5, message
    message = f"{facts.path}: the docstring needs `Source: Author et al. YEAR, ...`"
    assert len(facts.source) > 15, message
    assert any(year.isdecimal() for year in facts.source.replace(",", " ").split()), message
    message = f"{facts.path}: the docstring needs a paragraph `Worked number: ...` with numbers"
    assert any(letter.isdecimal() for letter in facts.worked), message
    assert facts.cost
    assert facts.map in ("exact", "effective")
    assert facts.state in ("growing", "constant")
    assert facts.why or (facts.causal and facts.cross), f"{facts.path}: `why` must give the reason"


@pytest.mark.parametrize("word", [word for word in WORDS if mechanisms.facts(word).causal])
def test_decoding_state_grows_only_if_documented(word: str) -> None:
    torch.manual_seed(0)
    parts = {"parts": ("dot", "gaussian")} if mechanisms.facts(word).composite else {}
    layer = MultiHead.build(word, 16, 2, 256, causal=True, **parts).eval()

    def size(state: object) -> int:
        if isinstance(state, torch.Tensor):
            return state.numel()
        return sum(map(size, state)) if isinstance(state, tuple) else 0

    sizes = []
    with torch.no_grad():
        for length in (40, 200):
            mask = Mask.packed(length, torch.device("cpu"), causal=True)
            sizes.append(size(layer(torch.randn(1, length, 16), mask).state))
    assert (sizes[0] == sizes[1]) == (mechanisms.facts(word).state == "constant")


def test_list_has_formula_cost_and_roles_of_every_mechanism(run: Cli) -> None:
    done = run()
    assert done.err == ""
    rows = {words[0]: words for words in map(str.split, done.out.splitlines()) if words}
    assert set(WORDS) <= set(rows)
    assert {"decoder", "cross", "decoding", "source"} <= set(rows["mechanism"])
    records = list(csv.DictReader(io.StringIO(run("--format", "csv").out)))
    assert [record["mechanism"] for record in records] == WORDS
    for record in records:
        facts = mechanisms.facts(record["mechanism"])
        assert (record["formula"], record["source"], record["time"]) == (facts.formula, facts.source, facts.cost)
        roles = ["yes" if role else "no" for role in (facts.causal, facts.cross)]
        assert [record["decoder"], record["cross"]] == roles


@pytest.mark.parametrize("word", WORDS)
def test_one_mechanism_is_shown_with_all_facts_of_its_file(
    word: str, run: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = []
    for width in ("60", "200"):
        monkeypatch.setenv("COLUMNS", width)
        done = run(word)
        assert done.err == ""
        assert max(map(len, done.out.splitlines())) <= int(width)
        letters.append(Counter(c for c in done.out if c.isalnum()))
    assert letters[0] == letters[1]
    facts = mechanisms.facts(word)
    flowed = " ".join(done.out.split())
    for text in (facts.title, facts.formula, facts.worked, facts.cost, *facts.options):
        assert text in flowed


def test_plug_in_is_listed_and_shown(run: Cli) -> None:
    path = Path("mine.py").absolute()
    path.write_text(
        '"""Mine: y = v.\n\nSource: I 2026."""\nfrom attnkit.attention import Kernel\n'
        "class Mine(Kernel):\n    cost = 'T'\n"
    )
    out = run("--plugin", str(path), "--columns", "formula,time").out
    assert ["mine", "y", "=", "v", "T"] in [line.split()[:5] for line in out.splitlines()]
    assert str(path) in "".join(run("mine", "--plugin", str(path)).out.split())
