"""Differences between systems as text: value, interval, p-value, stars and verdict, and notes that explain them."""

from collections.abc import Iterable, Sequence

from attnkit.scoring.significance import UNTESTED, Difference
from attnkit.show.table import NONE, Cell, Value


def signed(value: float) -> str:
    """Return a difference with its sign and two decimals; 0.00 has no sign."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text


def difference_cell(
    value: float | None, tested: Difference | None, not_comparable: Sequence[str], prefix: str = ""
) -> Cell:
    """Return a cell of a difference with its interval, corrected p-value, stars, and "level" if that is the verdict.

    Differences of systems that are not comparable are in parentheses; tested differences of perplexity are in percent.
    For programs, untested values are None, and names have the prefix.
    """
    low, high = tested.interval if tested and tested.interval else (None, None)
    named: dict[str, Value] = {"difference": value, "low": low, "high": high}
    if tested and tested.percent:
        named |= dict(zip(("percent", "percent_low", "percent_high"), tested.percent, strict=True))
    results = tested.json() if tested else UNTESTED
    named |= {name: results[name] for name in ("p", "p_corrected", "verdict", "provisional")}
    fields = {f"{prefix}{name}": value for name, value in named.items()}
    if value is None:
        return Cell(NONE, fields)
    if not_comparable:
        return Cell(f"({signed(value)})", fields, dim=True)
    if tested is None:
        return Cell(signed(value), fields)
    bounds, unit = tested.interval, ""
    if tested.percent:
        value, low, high = tested.percent
        bounds, unit = (low, high), " %"
    interval = f" [{signed(bounds[0])}, {signed(bounds[1])}]" if tested.interval and bounds else ""
    level = " level" if tested.verdict == "level" else ""
    return Cell(f"{signed(value)}{unit}{interval}{significance(tested.p_holm)}{level}", fields)


def significance(corrected: float | None) -> str:
    """Return a corrected p-value with its stars, after a space; empty for None."""
    if corrected is None:
        return ""
    return (" p<0.001" if corrected < 0.001 else f" p={corrected:.3f}") + stars(corrected)


def stars(p: float | None) -> str:
    """Return "*" below 0.05 or "**" below 0.01, after a space; otherwise an empty text."""
    if p is None or p >= 0.05:
        return ""
    return " **" if p < 0.01 else " *"


def significance_note(over: str, resamples: int, count: int, noun: str, *, seeds: bool = False) -> str:
    """Return a note that explains the p-values and stars of a table.

    Args:
        over: items that are resampled, in the plural.
        count: number of tests that are corrected together.
        noun: tested things, in the plural.
        seeds: whether the variance over seeds is included.
    """
    corrected = f", Holm-corrected for {count} {noun}" if count > 1 else ""
    test = f"by paired bootstrap over {over}, {resamples} resamples"
    if seeds:
        test = f"by Student's t from the variance over {over} (paired bootstrap, {resamples} resamples) and over seeds"
    return f"p: two-sided{corrected} (* below 0.05, ** below 0.01), {test}"


def few_items_note(items: int, noun: str) -> str:
    """Return a warning if there are fewer than FEW_ITEMS test items, otherwise an empty text.

    The minimum p-value of a sign test of n pairs is 2 ** (1 - n), a limit that a bootstrap of n pairs does not show.
    """
    if not 0 < items < FEW_ITEMS:
        return ""
    stars = "* and **" if items < 6 else "**"
    min_p = f"{2.0 ** (1 - items):.2g}"
    return f"only {items} {noun}: a sign test cannot reach p below {min_p}, so {stars} are not reliable here"


def interval_note(tests: Iterable[Difference]) -> str:
    """Return a note that explains the intervals, and the margins within which systems are level."""
    points, ratios = set[str](), set[str]()
    for test in tests:
        if test.percent:
            ratios.add(f"{test.margin:g} % of perplexity")
        else:
            points.add(f"{test.margin:g} point{'' if test.margin == 1 else 's'}")
    margins = " or ".join([*sorted(points), *sorted(ratios)])
    perplexity_note = " (perplexity: in percent of the baseline's)" if ratios else ""
    return (
        f"[low, high]: 95 % interval of the difference, not corrected{perplexity_note}; level: the "
        f"whole interval lies within {margins}, for any p"
    )


def scope_note(tests: Sequence[tuple[str, Difference]], noun: str, trained: bool) -> str:
    """Return a note on the variation that intervals and p-values cover: test items, training seeds, or both.

    Args:
        tests: the differences, with the names of the systems.
        noun: test items, in the plural.
        trained: whether the systems' seeds are known.
    """
    covers_seeds = any(test.seed_degrees for _, test in tests)
    if not covers_seeds and not trained:
        return f"intervals and p cover other test {noun}, for these systems"
    if not covers_seeds:
        return (
            f"provisional, as each system has one seed: intervals and p cover other test {noun}, not "
            "other training seeds"
        )
    text = f"intervals and p cover other test {noun} and other training seeds"
    single_seed = dict.fromkeys(name for name, test in tests if not test.seed_degrees)
    borrowing = dict.fromkeys(name for name, test in tests if test.provisional and test.seed_degrees)
    if borrowing:
        text += (
            f"; provisional: {', '.join(borrowing)}: one of the two rows has one seed, so the spread over "
            "seeds comes from the other row"
        )
    if single_seed:
        text += f"; provisional: {', '.join(single_seed)}: one seed each, so only other test {noun} are covered"
    return text


FEW_ITEMS = 8
"""Minimum number of pairs for which the p-value of a sign test can be below 0.01."""
SEPARABLE_NOTE = (
    "^: not separable from the best of the column: the corrected p is 0.05 or more (multiple "
    "comparisons with the best, Hsu 1984); this does not mean equal"
)
NO_TESTS = "no intervals, p-values or marks (^): eval.bootstrap is 0"
