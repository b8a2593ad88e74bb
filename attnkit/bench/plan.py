"""What to measure: mechanisms with options, lengths, shapes and time limits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnkit import mechanisms
from attnkit.recipe.mechanism_registry import options_of_words
from attnkit.recipe.sweep import split_values

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Default lengths for all mechanisms."""
LONGEST = 65536
"""Additional length for mechanisms of linear cost."""
BASELINE = "fused"
"""Label of torch's scaled_dot_product_attention."""
PASSES = ("forward", "forward+backward")


class Candidate(NamedTuple):
    """A mechanism with options, labeled as on the command line; the baseline has no mechanism name."""

    label: str
    word: str = ""
    options: Mapping[str, Any] = {}


class Workload(NamedTuple):
    """Settings shared by all measurements."""

    causal: bool = False
    layer: bool = False
    """Whether to measure the whole layer with its projections, instead of attention alone."""
    device: str = "cpu"
    dtype: str = "float32"
    batch: int = 1
    heads: int = 8
    head_width: int = 64
    repeats: int = 5
    budget: float = 10.0
    """Maximum seconds for one pass of one mechanism at one length."""
    threads: int | None = None
    plugins: tuple[Path, ...] = ()


class Sweep(NamedTuple):
    """A candidate and the lengths at which it is measured."""

    candidate: Candidate
    lengths: tuple[int, ...]


def candidate(text: str) -> Candidate:
    """Parse MECHANISM or MECHANISM:OPTION=VALUE,... such as local:window=128. Raises UsageError if it is invalid."""
    word, _, rest = text.partition(":")
    return Candidate(text, word, options_of_words(word, split_values(rest) if rest else []))


def sweeps(candidates: Sequence[Candidate], lengths: Sequence[int] | None) -> list[Sweep]:
    """Return the sweep of the baseline, then those of the candidates; by default, linear ones get longer inputs."""
    chosen = tuple(sorted(set(lengths or LENGTHS)))
    swept = []
    for one in candidates:
        further = lengths is None and not mechanisms.resolve_capabilities(one.word, one.options).quadratic
        swept.append(Sweep(one, (*chosen, LONGEST) if further else chosen))
    return [Sweep(Candidate(BASELINE), chosen), *swept]


def measurable(words: Sequence[str], causal: bool) -> list[str]:
    """Return the mechanisms that support causal attention, or attention in both directions."""
    known = [(word, mechanisms.facts(word)) for word in words]
    return [word for word, facts in known if (facts.causal if causal else facts.encoder)]
