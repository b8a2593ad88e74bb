"""`attnkit mechanisms`: the list, one explained, and what every file says of itself."""

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
    """`attnkit mechanisms` on a wide screen."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(mechanism_registry, "_plugged", {})
    return partial(cli, "mechanisms")


@pytest.mark.parametrize("word", WORDS)
def test_every_file_names_its_formula_its_source_and_a_worked_number(word: str) -> None:
    facts = mechanisms.facts(word)
    first = facts.doc.partition("\n")[0]
    told = f"{facts.path}: the first line of the docstring must be `Title: formula.`"
    assert first == f"{facts.title}: {facts.formula}.", told
    assert facts.title, told
    assert len(facts.formula) > 5, told
    told = f"{facts.path}: the docstring needs `Source: Author et al. YEAR, ...`"
    assert len(facts.source) > 15, told
    assert any(year.isdecimal() for year in facts.source.replace(",", " ").split()), told
    told = f"{facts.path}: the docstring needs a paragraph `Worked number: ...` with numbers"
    assert any(letter.isdecimal() for letter in facts.worked), told
    assert facts.cost
    assert facts.map in ("exact", "effective")
    assert facts.state in ("growing", "constant")
    assert facts.why or (facts.causal and facts.cross), f"{facts.path}: `why` must give the reason"


@pytest.mark.parametrize("word", [word for word in WORDS if mechanisms.facts(word).causal])
def test_the_state_of_decoding_grows_only_where_it_is_said_to(word: str) -> None:
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


def test_the_list_has_a_row_for_each_with_formula_cost_and_roles(run: Cli) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    rows = {words[0]: words for words in map(str.split, out.splitlines()) if words}
    assert set(WORDS) <= set(rows)
    assert {"decoder", "cross", "decoding", "source"} <= set(rows["mechanism"])
    code, out, _ = run("--format", "csv")
    records = {line["mechanism"]: line for line in csv.DictReader(io.StringIO(out))}
    assert list(records) == WORDS
    for word in WORDS:
        facts = mechanisms.facts(word)
        assert records[word]["formula"] == facts.formula
        assert records[word]["source"] == facts.source
        assert records[word]["time"] == facts.cost
        assert (records[word]["decoder"], records[word]["cross"]) == (
            "yes" if facts.causal else "no",
            "yes" if facts.cross else "no",
        )


@pytest.mark.parametrize("word", WORDS)
def test_one_is_explained_with_all_that_its_file_says(word: str, run: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = []
    for width in ("60", "200"):
        monkeypatch.setenv("COLUMNS", width)
        code, out, err = run(word)
        assert (code, err) == (0, "")
        assert max(map(len, out.splitlines())) <= int(width)
        letters.append(Counter(c for c in out if c.isalnum()))
    assert letters[0] == letters[1]
    facts = mechanisms.facts(word)
    flowed = " ".join(out.split())
    for text in (facts.title, facts.formula, facts.worked, facts.cost, *facts.options):
        assert text in flowed


def test_a_plug_in_is_listed_and_explained(tmp_path: Path, run: Cli) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        '"""Mine: y = v.\n\nSource: I 2026."""\nfrom attnkit.attention import Kernel\n'
        "class Mine(Kernel):\n    cost = 'T'\n"
    )
    _, out, _ = run("--plugin", str(path), "--columns", "formula,time")
    assert ["mine", "y", "=", "v", "T"] in [line.split()[:5] for line in out.splitlines()]
    _, out, _ = run("mine", "--plugin", str(path))
    assert str(path) in "".join(out.split())
