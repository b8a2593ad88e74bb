"""Variants of equal size: the widths at which each has as many parameters as the baseline.

Narang et al. 2021 ("Do Transformer Modifications Transfer Across Implementations and
Applications?", section 3) compare architectures at equal parameters or equal computation.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from attnkit.errors import RecipeError
from attnkit.experiment import cost
from attnkit.recipe import Recipe, RecipeFile

STEP = 8
"""Feed-forward widths are multiples of this, so that matrix products stay fast."""
LARGEST = 2**16
ROUNDS = 6
"""Widths that are tried at most."""


class Match(NamedTuple):
    """How one variant was made as large as the baseline."""

    variant: str
    before: tuple[int, int]
    """model.width and model.ff of the recipe."""
    after: tuple[int, int]
    """Those that match."""
    ratio: float
    """Parameters with them by those of the baseline."""

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
    baseline = baseline_of(file)
    for name in names:
        if name != baseline:
            yield _match(file, name, _count(file.variants[baseline]))


def baseline_of(file: RecipeFile) -> str:
    """The variant that the others are matched to."""
    return file.baseline or next(iter(file.variants))


def _count(recipe: Recipe) -> int:
    """Parameters with a vocabulary of the size in the recipe."""
    size = recipe.tokenizer.size
    return cost.parameters(recipe, (size, size)).total


def _match(file: RecipeFile, name: str, target: int) -> Match:
    """The widths at which a variant has the `target` number of parameters.

    The whole model is scaled first, in steps that keep heads of even width.  Parameters grow with
    the first to second power of the width, so steps by the square root of the ratio do not
    overshoot.  The feed-forward width, in proportion to which they grow, makes up the rest.
    """
    recipe = file.variants[name]
    model = recipe.model
    if model.counted:
        raise RecipeError(
            f"{file.name}: variant {name} cannot be matched to {baseline_of(file)}: a model of type"
            f" {model.type} has no widths; leave the variant out (--variant)"
        )

    def ratio(width: int, ff: int) -> float:
        changed = model.model_copy(update={"width": width, "ff": ff})
        return _count(recipe.model_copy(update={"model": changed})) / target

    step = 2 * model.heads
    width = model.width
    for _ in range(ROUNDS):
        root = ratio(width, model.ff * width // model.width) ** 0.5
        best, width = width, max(step, round(width / root / step) * step)
        if best == width:
            break
    before = (model.width, model.ff)
    if model.type != "transformer" or not model.ff:  # no feed-forward width: its own in small steps
        return Match(name, before, (width, model.ff), ratio(width, model.ff))
    narrow = max(STEP, model.ff * width // model.width)
    once, twice = (ratio(width, ff) for ff in (narrow, 2 * narrow))
    line = narrow + narrow * (1 - once) / (twice - once) if twice > once else 0.0
    ff = round(line / STEP) * STEP
    if not STEP <= ff <= LARGEST:
        raise RecipeError(
            f"{file.name}: variant {name} cannot be matched to {baseline_of(file)}: with "
            f"model.width={width} and model.ff={narrow} it has {once:.2f} x the parameters; leave "
            "the variant out (--variant), or change its layers"
        )
    return Match(name, before, (width, ff), ratio(width, ff))
