"""Tests of tables of scores by number of contexts or by length of the text."""

from typing import Any

from helpers.score_rows import compare_rows, fixed_difference, fixed_score, score_row, system_difference, with_values

from attnkit.scoring import Comparison, ScoreRow
from attnkit.show.comparison_tables import axis_of, tables

COUNTS = (1, 2, 4, 8, 16, 32)
METHODS = ("entropy", "entropy-free", "mean", "concat")
METRICS = ("answer-match", "context-found")


def row(method: str | None, contexts: int | None, value: float, **more: Any) -> ScoreRow:
    """Return the row of a method and a number of contexts, with the same value for every metric."""
    scores = {name: fixed_score(name, value, f"{name}|v1") for name in METRICS}
    if method in ("mean", "concat"):
        del scores["context-found"]
    cut = 40 if method == "concat" and (contexts or 0) > 2 else 0
    defaults = {"sentences": 40, "run": "runs/r/base/seed-1", "method": method, "contexts": contexts, "cut": cut}
    return score_row(more.pop("variant", "base"), scores, **(defaults | more))


def comparison(*rows: ScoreRow, corrected: dict[tuple[str, int], float] | None = None) -> Comparison:
    """Compare all methods with entropy, each significant at 1 % unless another corrected p is given."""
    rows = rows or tuple(row(m, n, 91.5 - n) for n in COUNTS for m in METHODS)
    differences = []
    for other in rows:
        if other.method not in ("entropy", None):
            p = (corrected or {}).get((other.method, other.contexts or 0), 0.004)
            base = with_values(other, method="entropy")
            differences += [
                system_difference(base, other, name, fixed_difference(-1.0, 0.001, p)) for name in other.scores
            ]
    return compare_rows(*rows, differences=tuple(differences), baseline="base", resamples=1000)


def test_stars_follow_the_corrected_p_of_the_cell() -> None:
    found = comparison(corrected={("mean", 4): 0.02, **{(name, 8): 0.3 for name in METHODS}})
    lines = {line[1].text: line for line in tables(found)[0].rows if line[0].text == "answer match"}
    cells = [cell.text for cell in lines["mean"][2:]]
    assert cells == ["90.5**", "89.5**", "87.5*", "83.5", "75.5**", "59.5**"]
    assert lines["entropy"][2].text == "90.5"


def test_best_of_a_column_is_bold_unless_all_are_equal() -> None:
    rows = [row("entropy", 1, 50), row("mean", 1, 50), row("entropy", 2, 40), row("mean", 2, 30)]
    table = tables(comparison(*rows))[0]
    bold = [[cell.best for cell in line[2:]] for line in table.rows]
    assert bold[:2] == [[False, True], [False, False]]


def test_values_are_means_over_seeds() -> None:
    rows = [row("entropy", 1, 40), row("entropy", 1, 50, seed=2)]
    table = tables(comparison(*rows))[0]
    assert table.rows[0][2].text == "45.0"
    assert "seeds: 1, 2 (means over seeds)" in table.notes
    short = table.with_notes("short").notes
    assert "seeds: 1, 2 (means over seeds)" in short
    assert 0 < len(short) < len(table.notes)


def test_questions_are_counted_by_number_of_contexts() -> None:
    rows = [row("entropy", 1, 40, sentences=7), row("entropy", 2, 40, sentences=9), row("entropy", 4, 40, sentences=9)]
    notes = tables(comparison(*rows))[0].notes
    assert "questions (contexts): 7 of test (1); 9 of test (2, 4)" in notes


def test_one_note_for_all_truncated_contexts() -> None:
    (note,) = [note for note in tables(comparison())[0].notes if "did not fit" in note]
    assert note == ("concat truncated contexts that did not fit one row (contexts): 40 of 40 questions (4, 8, 16, 32)")


def test_external_models_are_named() -> None:
    rows = [row("entropy", 1, 40, seed=None, variant="a/b", run="runs/r/models/a--b")]
    table = tables(comparison(*rows))[0]
    assert [column.title for column in table.columns] == ["metric", "model", "method", "1"]
    assert table.rows[0][1].text == "a/b"
    assert not any(note.startswith("seeds") for note in table.notes)


def test_variants_of_one_name_in_two_recipes_are_two_rows() -> None:
    rows = [row("entropy", 1, 40), row("entropy", 1, 60, recipe="s")]
    table = tables(comparison(*rows))[0]
    assert [[cell.text for cell in line] for line in table.rows[:2]] == [
        ["answer match", "r", "entropy", "40.0"],
        ["answer match", "s", "entropy", "60.0"],
    ]


def windows(variant: str, length: int, value: float) -> ScoreRow:
    """Return the row of one variant at one length."""
    return row(None, None, value, variant=variant, length=length, run=f"runs/r/{variant}/seed-1", cut=None)


def test_lengths_are_columns_with_their_own_stars() -> None:
    rows = [windows(v, n, 64 / n + i) for i, v in enumerate(("plain", "scaled")) for n in (64, 256)]
    tests = (fixed_difference(1.0, p, p) for p in (0.5, 0.001))
    pairs = zip(rows[:2], rows[2:], tests, strict=True)
    differences = tuple(system_difference(base, other, "answer-match", test) for base, other, test in pairs)
    table = tables(compare_rows(*rows, differences=differences, resamples=1000))[0]
    assert table.title == "r: test, by length of the text in tokens"
    assert [[cell.text for cell in line] for line in table.rows[:2]] == [
        ["answer match", "plain", "1.00", "0.25"],
        ["answer match", "scaled", "2.00", "1.25**"],
    ]
    notes = "\n".join(table.notes)
    assert "each length: the whole text, split into windows of this number of tokens" in notes
    assert "difference: to plain at the same length; p: " in notes
    assert "variance over windows (paired bootstrap, 1000 resamples)" in notes


def test_axis_of_rows() -> None:
    assert axis_of(comparison().rows) == "contexts"
    assert axis_of([windows("plain", 64, 1)]) == "length"
    assert axis_of([score_row("plain")]) == ""
