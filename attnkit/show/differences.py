"""Differences and their significance in words: a sign, a p-value, stars, and what they mean."""

from collections.abc import Mapping, Sequence
from typing import Any

Test = Mapping[str, Any]


def signed(value: float) -> str:
    """A difference with its sign and two digits; what rounds to none has no sign."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def significance(corrected: float | None) -> str:
    """A corrected p-value with its stars, a space before; nothing without one."""
    if corrected is None:
        return ""
    return (" p<0.001" if corrected < 0.001 else f" p={corrected:.3f}") + stars(corrected)


def stars(p: float | None) -> str:
    """* below 0.05, ** below 0.01, with a space before."""
    if p is None or p >= 0.05:
        return ""
    return " **" if p < 0.01 else " *"


def significance_note(over: str, resamples: int, count: int, noun: str) -> str:
    """What p-values and stars in a table of so many tests are; `noun`: what is tested."""
    corrected = f", Holm-corrected for {count} {noun}" if count > 1 else ""
    return (
        f"p: two-sided{corrected} (* below 0.05, ** below 0.01), by paired bootstrap over {over}, "
        f"{resamples} resamples"
    )


def scope_note(tests: Sequence[Test], what: str, trained: bool) -> str:
    """What the p-values speak of, and what they do not; `trained`: seeds are known."""
    degrees = sorted({test.get("seed_degrees") or 0 for test in tests if test["p"] is not None})
    if degrees == [0] and not trained:
        return f"p tells whether other test {what} would show the difference between these systems"
    if degrees == [0]:
        return (
            f"one seed each: p tells whether other test {what} would show the difference between "
            "these trained models, not whether training again would"
        )
    known = " or ".join(map(str, filter(None, degrees)))
    text = (
        f"p tells whether other test {what} and other training seeds would show the difference; "
        f"the spread over seeds is that of all variants with several, {known} degrees of freedom"
    )
    return text + ("; where no variant has several, of other " + what if degrees[0] == 0 else "")


LEVEL_NOTE = (
    "^: level with the best: its corrected p against the best of the column is 0.05 or more "
    "(multiple comparisons with the best, Hsu 1984)"
)
NO_TESTS = "no p-values, and so no group level with the best (^): eval.bootstrap is 0"
