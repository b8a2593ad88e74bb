"""Outputs whose score would mislead are named with their number."""

from attnkit.scoring import warnings


def lines(*texts: str) -> list[list[str]]:
    """One reference a line."""
    return [[text] for text in texts]


def test_good_output_gives_no_warning() -> None:
    assert warnings(["a cat .", "x @ y"], lines("a dog .", "x ## y")) == []
    assert warnings(["a", ""], lines("a", ""), metrics=["rouge1", "bleu"]) == []


def test_empty_hypotheses_are_counted() -> None:
    assert warnings(["", " ", "a"], lines("a", "b", "")) == ["2 of 3 outputs are empty"]


def test_an_empty_hypothesis_for_an_empty_reference_is_right() -> None:
    assert warnings(["", "a"], lines("", "b")) == []


def test_equal_hypotheses_are_noticed() -> None:
    assert warnings(["a", "a"], lines("b", "c")) == ["all 2 outputs are the same text"]
    assert warnings(["a"], lines("b")) == []


def test_subword_marks_are_counted() -> None:
    texts = ["\u2581a \u2581cat", "a c@@ at", "a c ##at", "ends c@@", "a@@b"]
    (warning,) = warnings(texts, lines(*"abcde"))
    assert warning.startswith("4 of 5 outputs have subword marks (U+2581, @@ or ##)")


def test_marks_that_the_references_carry_as_well_are_no_fault() -> None:
    assert warnings(["a c@@ at"], lines("a c@@ at")) == []


def test_separate_full_stops_are_noticed() -> None:
    (warning,) = warnings(["a cat .", "a dog ."], lines("a cat.", "a dog."))
    assert warning.startswith("2 of 2 outputs end in a separate full stop")
