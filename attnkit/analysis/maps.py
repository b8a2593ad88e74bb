"""Attention maps of one text, with the tokens of both axes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.errors import DataError, UsageError

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
"""Self-attention of the encoder, self-attention of the decoder (or language model), cross attention."""

Step = Literal["output", "input"]
STEPS: tuple[Step, ...] = ("output", "input")
"""Token that labels a row of cross attention, whose query belongs to one decoding step: the token that the step
predicts (output), as in Bahdanau et al. 2015, figure 3, or the token that it reads, which is the previous one
(input)."""

TEXT_WEIGHTS = 2**30
"""Maximum number of attention weights of one text: 4.3 GB."""
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")


class Token(NamedTuple):
    """A position of an axis, as the model reads it."""

    text: str
    """Piece as in the vocabulary, with U+2581 for a space before it; untrusted text."""
    id: int
    word: int | None
    """Index of the word on this axis; None for a special token."""
    special: bool = False
    """Whether it is a begin, end, separator or padding token, not text of the user."""


class MapLayer(NamedTuple):
    """Origin of the maps of one layer."""

    number: int
    """Index in its stack."""
    mechanism: str
    """Name in recipes, or in another library."""
    exact: bool = True
    """Whether the mechanism computes this matrix; otherwise it is the effective matrix, equivalent to the
    mechanism."""
    static: bool = False
    """Whether the map is the same for all texts of this length, because it depends on neither queries nor keys."""
    distance: tuple[float, ...] | None = None
    """For each head of `AttentionMaps.heads`, half the L1 distance of its rows from exact softmax attention on the
    same queries and keys, averaged over queries. For distributions this is the total variation distance (0 to 1); with
    negative entries it may exceed 1. None if the matrix is exact, or there are no queries or keys."""


@dataclass(frozen=True)
class AttentionMaps:
    """Maps of one kind: weights[l, h, t, s] is the weight of key s for query t."""

    kind: Kind
    weights: Float[NDArray[np.float32], "L H T S"]
    layers: tuple[MapLayer, ...]
    heads: tuple[int, ...]
    """Indices of the heads in each layer."""
    queries: tuple[Token, ...]
    keys: tuple[Token, ...]
    step: Step = "input"
    """Which tokens `queries` are; `output` is possible for cross attention only."""
    alone: bool = False
    """Whether the maps come from a decoder without an encoder, which reads a single text without a source."""
    hidden: tuple[Token, ...] = ()
    """Keys before `keys` whose columns are omitted."""
    chosen_from: tuple[int, int] | None = None
    """Numbers of layers and heads from which `spread` selected these maps."""

    def __post_init__(self) -> None:
        sizes = (len(self.layers), len(self.heads), len(self.queries), len(self.keys))
        if self.weights.shape != sizes:
            raise ValueError(f"weights of shape {self.weights.shape} for axes of {sizes}")

    def choose(self, layers: Sequence[int] = (), heads: Sequence[int] = ()) -> "AttentionMaps":
        """Return the maps of layers and heads by number; empty: all. Raises UsageError if one does not exist."""
        rows, columns = choose_indices(self.kind, [layer.number for layer in self.layers], self.heads, layers, heads)
        chosen_layers = tuple(
            layer._replace(distance=layer.distance and tuple(layer.distance[i] for i in columns))
            for layer in (self.layers[row] for row in rows)
        )
        weights = self.weights[np.ix_(rows, columns)]
        return replace(self, weights=weights, layers=chosen_layers, heads=tuple(self.heads[i] for i in columns))

    def by_word(self) -> "AttentionMaps":
        """Merge subwords, but not special tokens: attention to a word is summed, attention from it is averaged."""
        rows, queries = _words(self.queries)
        columns, keys = _words(self.keys)
        # not by matrix products: on some CPUs NumPy warns of invalid values without reason
        sums = np.add.reduceat(np.add.reduceat(self.weights, columns, 3), rows, 2)
        weights = (sums / np.diff(rows, append=len(self.queries))[:, None]).astype(np.float32)
        return replace(self, weights=weights, queries=queries, keys=keys)

    def without(self, *, special: bool = False, first: bool = False) -> "AttentionMaps":
        """Return the maps without special tokens on either axis, and without the column of the first key.

        Rows may then sum to less than 1. The first key is the begin token if there is one; if `special` already
        removes it, `first` has no effect.
        """
        rows = [i for i, token in enumerate(self.queries) if not (special and token.special)]
        columns = [i for i, token in enumerate(self.keys) if not (special and token.special)]
        hidden = self.hidden
        if first and columns[:1] == [0]:
            columns, hidden = columns[1:], self.keys[:1]
        return replace(
            self,
            weights=self.weights[:, :, rows][:, :, :, columns],
            queries=tuple(self.queries[i] for i in rows),
            keys=tuple(self.keys[i] for i in columns),
            hidden=hidden,
        )

    def spread(self, count: int, *, all_layers: bool = False, all_heads: bool = False) -> "AttentionMaps":
        """Return about `count` maps: layers and heads at even distances, including the first and the last.

        Layers are dropped before heads, down to the square root of `count` on each side; `all_layers` and
        `all_heads` keep all.
        """
        layers, heads = len(self.layers), len(self.heads)
        rows = layers if all_layers else min(layers, max(isqrt(count), count // heads))
        columns = heads if all_heads else min(heads, max(isqrt(count), count // rows))
        if (rows, columns) == (layers, heads):
            return self
        chosen = self.choose(_evenly([layer.number for layer in self.layers], rows), _evenly(self.heads, columns))
        return replace(chosen, chosen_from=(layers, heads))


@dataclass(frozen=True)
class Capture:
    """All maps of one text through one model."""

    source: str
    """Text of the source; empty if the model has none."""
    output: str
    """Text of the queries: the given target, or the generated output."""
    how: str
    """Origin of the output: "given", "greedy", "beam 5", "sampled, seed 1", or "" (no output)."""
    model: str
    """Recipe, variant and seed of the run, or the name of another library's model."""
    maps: dict[Kind, AttentionMaps]
    facts: dict[str, str] = field(default_factory=dict)
    """Facts for the footer: SHA-256 of weights, recipe and tokenizer, versions; `note` is a warning."""
    reference: "Capture | None" = None
    """If requested: exact softmax attention on the same queries and keys, for layers that have both."""


def check_weights(weights: int, name: str, advice: str) -> None:
    """Raise DataError if the number of weights in a text's maps exceeds `TEXT_WEIGHTS`."""
    if weights > TEXT_WEIGHTS:
        needed, limit = weights * 4 / 1e9, TEXT_WEIGHTS * 4 / 1e9
        raise DataError(f"{name}: the attention maps need {needed:,.1f} GB, but the limit is {limit:.1f} GB: {advice}")


def choose_indices(
    kind: Kind, numbers: Sequence[int], columns: Sequence[int], layers: Sequence[int], heads: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return ascending indices of layers and heads by number; empty: all. Raises UsageError if one does not exist."""
    where = f"{kind} attention"
    rows = indices_of("layer", numbers, layers, where)
    return sorted(rows), sorted(indices_of("head", columns, heads, where))


def indices_of(axis: str, numbers: Sequence[int], wanted: Sequence[int], where: str) -> list[int]:
    """Return the indices of layers or heads by number; empty: all. Raises UsageError if one does not exist."""
    for number in wanted:
        if number not in numbers:
            choices, first, last = ", ".join(map(str, numbers)), numbers[0], numbers[-1]
            if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
                choices = f"{first} to {last}"
            label = f"{axis}s" if numbers[1:] else f"only {axis}"
            raise UsageError(f"--{axis} {number}: {where} has {label} {choices}")
    return [numbers.index(number) for number in dict.fromkeys(wanted)] or [*range(len(numbers))]


def _evenly(numbers: Sequence[int], count: int) -> list[int]:
    """Return `count` numbers at even distances, including the first and the last."""
    steps = max(1, count - 1)
    return [numbers[round(i * (len(numbers) - 1) / steps)] for i in range(count)]


def _words(tokens: Sequence[Token]) -> tuple[NDArray[np.intp], tuple[Token, ...]]:
    """Return the index of each word's first token [words], and the words as tokens."""
    groups: list[list[int]] = []
    for position, token in enumerate(tokens):
        if not position or token.word is None or tokens[position - 1].word != token.word:
            groups.append([])
        groups[-1].append(position)
    words = []
    for positions in groups:
        first = tokens[positions[0]]
        text = "".join(tokens[position].text for position in positions)
        words.append(first._replace(text=_BYTES.sub(_characters, text)))
    return np.array([positions[0] for positions in groups], np.intp), tuple(words)


def _characters(match: re.Match[str]) -> str:
    """Return the characters of bytes that pieces spell as <0xE4>."""
    try:
        return bytes.fromhex(match[0].replace("<0x", "").replace(">", "")).decode("utf-8")
    except UnicodeDecodeError:
        return match[0]
