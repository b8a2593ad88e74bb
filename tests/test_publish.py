"""Tests of the programs that write and check pages of results."""

import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from attnkit.scoring.significance import Difference

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(BENCHMARKS.parent)


@pytest.mark.slow
def test_pages_can_be_recomputed_from_kept_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One page per folder of recipes, to save time; `publish.py --check` checks all."""
    publish: Any = importlib.import_module("publish")
    page, folders = publish.page, set[str]()

    def first(name: str, runs: Any) -> str:
        folder = name.partition("/")[0]
        if folder in folders:
            return publish.file_of(name).read_text("utf-8")
        folders.add(folder)
        return page(name, runs)

    monkeypatch.setattr(publish, "page", first)
    monkeypatch.setattr(sys, "argv", ["publish.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        publish.main()
    assert not ended.value.code, capsys.readouterr()


@pytest.fixture
def claims() -> Any:
    return importlib.import_module("claims")


UNDECIDED, CONFIRMED, REFUTED = "not confirmed here", "confirmed", "refuted"


@pytest.mark.parametrize(
    ("low", "high", "p", "above", "below", "level", "at_least"),
    [
        (0.2, 0.8, 0.01, CONFIRMED, REFUTED, CONFIRMED, CONFIRMED),
        (0.2, 2.2, 0.01, CONFIRMED, REFUTED, UNDECIDED, CONFIRMED),
        (1.2, 2.2, 0.01, CONFIRMED, REFUTED, REFUTED, CONFIRMED),
        (-2.2, -1.2, 0.01, REFUTED, CONFIRMED, REFUTED, REFUTED),
        (-2.2, -0.2, 0.01, REFUTED, CONFIRMED, UNDECIDED, REFUTED),
        (-2.2, -0.2, 0.09, UNDECIDED, UNDECIDED, UNDECIDED, UNDECIDED),
        (-0.5, 0.6, 0.8, UNDECIDED, UNDECIDED, CONFIRMED, CONFIRMED),
        (-math.inf, math.inf, 1.0, UNDECIDED, UNDECIDED, UNDECIDED, UNDECIDED),
    ],
)
def test_verdicts_follow_interval_and_corrected_p(
    claims: Any, low: float, high: float, p: float, above: str, below: str, level: str, at_least: str
) -> None:
    value = (low + high) / 2 if math.isfinite(low) else 0.3
    inside = low >= -1 and high <= 1
    difference = Difference(value, low, high, p, p, (3, 3), 1.0, inside, "higher", 4)
    verdicts = [claims.judge(statement, difference) for statement in ("above", "below", "level", "level-or-above")]
    assert verdicts == [above, below, level, at_least]


def test_a_claim_about_a_missing_row_raises(claims: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = claims.FILE.read_text("utf-8").replace("rows: [fixed-random]", "rows: [fixed-radnom]")
    (tmp_path / "claims.yaml").write_text(text, "utf-8")
    monkeypatch.setattr(claims, "FILE", tmp_path / "claims.yaml")
    with pytest.raises(SystemExit, match="translation/multi30k-small has no row fixed-radnom"):
        claims.groups()


class KeptRun(NamedTuple):
    """The parts of a kept run that quotes.number reads; `scores` are BLEU by length."""

    variant: str
    scores: dict[int, float]

    def rows(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(split="test", length=length, scores={"bleu": SimpleNamespace(value=value)})
            for length, value in self.scores.items()
        ]


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    quotes: Any = importlib.import_module("quotes")
    runs = [KeptRun("a", {8: 30.04, 64: 10.0}), KeptRun("a", {8: 32.0, 64: 12.0}), KeptRun("b", {8: 20.0, 64: 44.0})]
    monkeypatch.setattr(quotes, "saved_rows", KeptRun.rows)
    return lambda words: quotes.number(words, runs)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("a", "31.0"),
        ("a at 64", "11.0"),
        ("b minus a", "-11.0"),
        ("a above b", "11.0"),
        ("a % below b at 64", "75"),
        ("a above b in bleu at 8", "11.0"),
    ],
)
def test_quoted_numbers_are_means_of_kept_runs(number: Callable[[str], str], words: str, value: str) -> None:
    assert number(words) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a below b", "the kept runs say 31.02 and 20.00"),
        ("c", "no kept runs of c"),
        ("a at 16", "no kept runs of a at length 16"),
        ("a in chrf", "have no chrf, but bleu"),
        ("a beside b", "not of the form"),
    ],
)
def test_quotes_that_kept_runs_contradict_raise(number: Callable[[str], str], words: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        number(words)
