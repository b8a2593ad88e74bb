"""Pages of results are those that the kept runs give, and verdicts follow the rules on the page."""

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
def test_pages_of_kept_runs_can_be_recomputed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pages of single recipes by one of each folder; the program itself computes all."""
    publish: Any = importlib.import_module("publish")
    page, folders = publish.page, set[str]()

    def first(name: str, runs: Any) -> str:
        folder = name.partition("/")[0]
        if folder in folders:
            return str(publish.file_of(name).read_text("utf-8"))
        folders.add(folder)
        return str(page(name, runs))

    monkeypatch.setattr(publish, "page", first)
    monkeypatch.setattr(sys, "argv", ["publish.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        publish.main()
    assert not ended.value.code, capsys.readouterr()


@pytest.fixture
def claims() -> Any:
    return importlib.import_module("claims")


UNFIT, CONFIRMED, REFUTED = "not confirmed here", "confirmed", "refuted"


@pytest.mark.parametrize(
    ("low", "high", "p", "above", "below", "level", "at_least"),
    [
        (0.2, 0.8, 0.01, CONFIRMED, REFUTED, CONFIRMED, CONFIRMED),
        (0.2, 2.2, 0.01, CONFIRMED, REFUTED, UNFIT, CONFIRMED),
        (1.2, 2.2, 0.01, CONFIRMED, REFUTED, REFUTED, CONFIRMED),
        (-2.2, -1.2, 0.01, REFUTED, CONFIRMED, REFUTED, REFUTED),
        (-2.2, -0.2, 0.01, REFUTED, CONFIRMED, UNFIT, REFUTED),
        (-2.2, -0.2, 0.09, UNFIT, UNFIT, UNFIT, UNFIT),
        (-0.5, 0.6, 0.8, UNFIT, UNFIT, CONFIRMED, CONFIRMED),
        (-math.inf, math.inf, 1.0, UNFIT, UNFIT, UNFIT, UNFIT),
    ],
)
def test_verdicts_follow_interval_and_corrected_p(
    claims: Any, low: float, high: float, p: float, above: str, below: str, level: str, at_least: str
) -> None:
    value = (low + high) / 2 if math.isfinite(low) else 0.3
    inside = low >= -1 and high <= 1
    found = Difference(value, low, high, p, p, (3, 3), 1.0, inside, "higher", 4)
    said = [claims.judge(say, found) for say in ("above", "below", "level", "level-or-above")]
    assert said == [above, below, level, at_least]


def test_a_statement_about_a_row_that_is_not_there_is_refused(
    claims: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = claims.FILE.read_text("utf-8").replace("rows: [fixed-random]", "rows: [fixed-radnom]")
    (tmp_path / "claims.yaml").write_text(text, "utf-8")
    monkeypatch.setattr(claims, "FILE", tmp_path / "claims.yaml")
    with pytest.raises(SystemExit, match="translation/multi30k-small has no row fixed-radnom"):
        claims.groups()


class Kept(NamedTuple):
    """A kept run of a variant, as far as quotes.number reads it: BLEU by length."""

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
    kept = [Kept("a", {8: 30.04, 64: 10.0}), Kept("a", {8: 32.0, 64: 12.0}), Kept("b", {8: 20.0, 64: 44.0})]
    monkeypatch.setattr(quotes, "saved_rows", Kept.rows)
    return lambda words: quotes.number(words, kept)


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
def test_numbers_in_prose_are_means_of_kept_runs(number: Callable[[str], str], words: str, value: str) -> None:
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
def test_prose_that_kept_runs_contradict_is_refused(number: Callable[[str], str], words: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        number(words)
