"""Variants of equal cost: the widths at which each costs what the baseline costs.

Narang et al. 2021 ("Do Transformer Modifications Transfer Across Implementations and
Applications?", section 3) compare architectures at equal parameters or equal computation.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from attnkit.data.preparation import PreparedData
from attnkit.errors import RecipeError, UnavailableError
from attnkit.experiment import cost
from attnkit.recipe import Recipe, RecipeFile
from attnkit.runs import Run, run_path

STEP = 8
"""Feed-forward widths are multiples of this, so that matrix products stay fast."""
LARGEST = 2**16
REPEATS, ROUNDS = 3, 6
TOLERANCE = 0.1
"""By how much measured times may differ after matching."""


class Match(NamedTuple):
    """How one variant was made to cost what the baseline costs."""

    variant: str
    before: tuple[int, int]
    """model.width and model.ff of the recipe."""
    after: tuple[int, int]
    """Those that match."""
    ratio: float
    """Cost with them by the cost of the baseline; NaN where they were chosen before."""

    @property
    def overrides(self) -> list[str]:
        """The KEY=VALUE words that set the widths."""
        keys = zip(("width", "ff"), self.after, strict=True)
        return [f"variants.{self.variant}.model.{key}={value}" for key, value in keys]


def match_parameters(file: RecipeFile, names: Sequence[str]) -> Iterator[Match]:
    """Widths at which these variants have the baseline's number of parameters.

    Parameters are counted for the vocabulary size of the recipe; a smaller one changes all variants
    by the same number.

    Raises:
        RecipeError: no width makes a variant so small or so large.
    """

    def count(recipe: Recipe) -> float:
        size = recipe.tokenizer.size
        return cost.parameters(recipe, (size, size)).total

    baseline = baseline_of(file)
    total = count(file.variants[baseline])
    for name in names:
        if name != baseline:
            yield _match(file, name, lambda recipe: count(recipe) / total, "parameters")


def match_time(
    file: RecipeFile,
    names: Sequence[str],
    prepare: Callable[[Recipe], PreparedData],
    device: str,
) -> Iterator[Match]:
    """Widths at which an update of these variants takes as long as one of the baseline, measured.

    The baseline is measured again beside each measurement, so that a slow minute of the machine
    does not count; the fastest of `REPEATS` counts.

    Raises:
        RecipeError: no width makes a variant so fast or so slow.
        UnavailableError: the machine is too busy to measure.
    """
    baseline = baseline_of(file)
    base = file.variants[baseline]
    precision = cost.pace(base, prepare(base), device).precision

    def seconds(recipe: Recipe) -> float:
        fixed = recipe.train.model_copy(update={"precision": precision})
        return cost.pace(
            recipe.model_copy(update={"train": fixed}), prepare(recipe), device
        ).seconds

    def ratio(recipe: Recipe) -> float:
        pairs = [(seconds(recipe), seconds(base)) for _ in range(REPEATS)]
        return min(own for own, _ in pairs) / min(other for _, other in pairs)

    for name in names:
        if name != baseline:
            found = _match(file, name, ratio, "time of an update")
            if abs(found.ratio - 1) > TOLERANCE:
                raise UnavailableError(
                    f"variant {name} takes {found.ratio:.2f} x the time of {baseline} although "
                    "their times are matched: stop what else runs on this machine, and run again"
                )
            yield found


def earlier(file: RecipeFile, names: Sequence[str], out: Path) -> Iterator[Match]:
    """Widths of the runs below `out` that these variants have, so that they can resume.

    What was measured once is not measured again: it would come out a little different.
    """
    for name in names:
        runs = run_path(out, file.name, name, 0).parent.glob("seed-*/manifest.json")
        if name != baseline_of(file) and (first := next(runs, None)) is not None:
            given, kept = file.variants[name].model, Run.open(first.parent).recipe.model
            yield Match(name, (given.width, given.ff), (kept.width, kept.ff), math.nan)


def baseline_of(file: RecipeFile) -> str:
    """The variant that the others are matched to."""
    return file.baseline or next(iter(file.variants))


def _match(file: RecipeFile, name: str, ratio: Callable[[Recipe], float], what: str) -> Match:
    """The widths at which the cost of a variant is that of the baseline.

    The whole model is scaled first, in steps that keep heads of even width.  Its cost grows with
    the first to second power of the width, so steps by the square root of the ratio do not
    overshoot.  The feed-forward width, in proportion to which the cost grows, makes up the rest.
    """
    recipe = file.variants[name]
    model = recipe.model
    if model.counted:
        raise RecipeError(
            f"{file.name}: variant {name} cannot be matched to {baseline_of(file)}: a model of type"
            f" {model.type} has no widths; leave the variant out (--variant)"
        )
    step = 2 * model.heads
    width = model.width
    for _ in range(ROUNDS):
        scaled = with_widths(recipe, width, model.ff * width // model.width)
        best, width = width, max(step, round(width / ratio(scaled) ** 0.5 / step) * step)
        if best == width:
            break
    if model.type != "transformer":  # no feed-forward width, but one head, so small steps
        reached = ratio(with_widths(recipe, width, model.ff))
        return Match(name, (model.width, model.ff), (width, model.ff), reached)
    narrow, wide = (max(STEP, model.ff * width // model.width * times) for times in (1, 2))
    once, twice = (ratio(with_widths(recipe, width, ff)) for ff in (narrow, wide))
    line = narrow + (wide - narrow) * (1 - once) / (twice - once) if twice > once else 0.0
    ff = round(line / STEP) * STEP
    if not STEP <= ff <= LARGEST:
        raise RecipeError(
            f"{file.name}: variant {name} cannot be matched to {baseline_of(file)}: with "
            f"model.width={width} and model.ff={narrow} its {what} is {once:.2f} x as much; leave "
            "the variant out (--variant), or change its layers"
        )
    reached = ratio(with_widths(recipe, width, ff))
    return Match(name, (model.width, model.ff), (width, ff), reached)


def with_widths(recipe: Recipe, width: int, ff: int) -> Recipe:
    """The recipe with other widths of the residual stream and the feed-forward sublayers."""
    model = recipe.model.model_copy(update={"width": width, "ff": ff})
    return recipe.model_copy(update={"model": model})
