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
    mechanism: str = ""
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
    mechanism, _, rest = text.partition(":")
    return Candidate(text, mechanism, options_of_words(mechanism, split_values(rest) if rest else []))


def sweeps(candidates: Sequence[Candidate], lengths: Sequence[int] | None) -> list[Sweep]:
    """Return the sweep of the baseline, then those of the candidates; by default, linear ones get longer inputs."""
    base_lengths = tuple(sorted(set(lengths or LENGTHS)))
    swept = []
    for entry in candidates:
        longer = lengths is None and not mechanisms.resolve_capabilities(entry.mechanism, entry.options).quadratic
        swept.append(Sweep(entry, (*base_lengths, LONGEST) if longer else base_lengths))
    return [Sweep(Candidate(BASELINE), base_lengths), *swept]


def measurable(names: Sequence[str], causal: bool) -> list[str]:
    """Return the mechanisms that support causal attention, or attention in both directions."""
    all_facts = [(name, mechanisms.facts(name)) for name in names]
    return [name for name, facts in all_facts if (facts.causal if causal else facts.encoder)]
