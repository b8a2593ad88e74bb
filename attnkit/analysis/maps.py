"""Attention maps of one text with the tokens of both axes."""

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
"""Self-attention of the encoder, of the decoder (or language model), and cross attention."""

Step = Literal["output", "input"]
STEPS: tuple[Step, ...] = ("output", "input")
"""What names a row of cross attention, whose query the decoder makes at one step of decoding: the
token that the step predicts (output), as in Bahdanau et al. 2015, figure 3, or the token that it
reads, which is the one before (input)."""

TEXT_WEIGHTS = 2**30
"""Attention weights of one text, at most: 4.3 GB."""
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")


class Token(NamedTuple):
    """One position of an axis, as the model saw it."""

    text: str
    """The piece as its vocabulary spells it, a space before it as U+2581; untrusted text."""
    id: int
    word: int | None
    """Number of its word on this axis, from 0; None for a special token."""
    special: bool = False
    """Begin, end, separator or padding token, not the user's text."""


class MapLayer(NamedTuple):
    """What one layer of maps comes from."""

    number: int
    """In its stack, from 0."""
    mechanism: str
    """Recipe word, or how another library calls it."""
    exact: bool = True
    """Whether the mechanism forms this matrix; else it is the effective one that it amounts to."""
    static: bool = False
    """The same for every text of this length: it reads neither queries nor keys."""
    distance: tuple[float, ...] | None = None
    """For each head of `AttentionMaps.heads` half the L1 distance of its rows from exact softmax
    attention on the same queries and keys, averaged over the queries.  Where rows are distributions
    that is the total variation distance (0 to 1); with negative entries it may exceed 1.
    None where the matrix is exact, and where there are no queries or keys."""


@dataclass(frozen=True)
class AttentionMaps:
    """Maps of one kind: weights[l, h, t, s] is the weight of key s for query t."""

    kind: Kind
    weights: Float[NDArray[np.float32], "L H T S"]
    layers: tuple[MapLayer, ...]
    heads: tuple[int, ...]
    """Numbers of the heads in each layer, from 0."""
    queries: tuple[Token, ...]
    keys: tuple[Token, ...]
    step: Step = "input"
    """Which tokens `queries` are; only rows of cross attention can have those of the output."""
    alone: bool = False
    """Whether a decoder without an encoder made them: it reads one text, which has no source."""
    hidden: tuple[Token, ...] = ()
    """Keys before `keys` whose columns are not shown."""
    chosen_from: tuple[int, int] | None = None
    """Numbers of layers and heads of which these were chosen by `spread`."""

    def __post_init__(self) -> None:
        sizes = (len(self.layers), len(self.heads), len(self.queries), len(self.keys))
        if self.weights.shape != sizes:
            raise ValueError(f"weights of shape {self.weights.shape} for axes of {sizes}")

    def choose(self, layers: Sequence[int] = (), heads: Sequence[int] = ()) -> "AttentionMaps":
        """The maps of these layers and heads, by number; of all where none is given.

        Raises UsageError: one is not there.
        """
        rows, columns = choose_indices(self.kind, [layer.number for layer in self.layers], self.heads, layers, heads)
        chosen = tuple(
            layer._replace(distance=layer.distance and tuple(layer.distance[i] for i in columns))
            for layer in (self.layers[row] for row in rows)
        )
        weights = self.weights[np.ix_(rows, columns)]
        return replace(self, weights=weights, layers=chosen, heads=tuple(self.heads[i] for i in columns))

    def by_word(self) -> "AttentionMaps":
        """Subwords merged to words: attention to a word is summed, from a word averaged.

        Rows that sum to 1 still do.  Special tokens stay by themselves.
        """
        rows, queries = _words(self.queries)
        columns, keys = _words(self.keys)
        # not by matrix products, which on some CPUs warn of invalid values without reason
        sums = np.add.reduceat(np.add.reduceat(self.weights, columns, 3), rows, 2)
        weights = (sums / np.diff(rows, append=len(self.queries))[:, None]).astype(np.float32)
        return replace(self, weights=weights, queries=queries, keys=keys)

    def without(self, *, special: bool = False, first: bool = False) -> "AttentionMaps":
        """The maps without special tokens on either axis, and without the column of the first key.

        Rows may then sum to less than 1.  The first key is the begin token where there is one;
        where `special` leaves it out on both axes, `first` leaves out nothing more.
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

    def spread(self, most: int, *, all_layers: bool = False, all_heads: bool = False) -> "AttentionMaps":
        """About `most` maps: layers and heads at even distances, the first and the last among them.

        Layers are left out before heads, down to the square root of `most` on each side; none is
        where `all_layers` or `all_heads` says so.
        """
        layers, heads = len(self.layers), len(self.heads)
        rows = layers if all_layers else min(layers, max(isqrt(most), most // heads))
        columns = heads if all_heads else min(heads, max(isqrt(most), most // rows))
        if (rows, columns) == (layers, heads):
            return self
        some = self.choose(_evenly([layer.number for layer in self.layers], rows), _evenly(self.heads, columns))
        return replace(some, chosen_from=(layers, heads))


@dataclass(frozen=True)
class Capture:
    """All maps of one text through one model."""

    source: str
    """What the model read; empty where it has no source."""
    output: str
    """What the maps' queries are: the given target, or what the model wrote."""
    how: str
    """Where the output comes from: "given", "greedy", "beam 5", "sampled, seed 1", or "" (none)."""
    model: str
    """Recipe, variant and seed of the run, or the name of another library's model."""
    maps: dict[Kind, AttentionMaps]
    facts: dict[str, str] = field(default_factory=dict)
    """For the footer: SHA-256 of weights, recipe and tokenizer, versions; `note` is a warning."""
    reference: "Capture | None" = None
    """If requested: what exact softmax attention makes of the same queries and keys, for the layers that have both."""


def check_weights(weights: int, name: str, advice: str) -> None:
    """Refuse a text whose maps would have so many weights.  Raises DataError."""
    if weights > TEXT_WEIGHTS:
        needed, most = weights * 4 / 1e9, TEXT_WEIGHTS * 4 / 1e9
        raise DataError(f"{name}: its maps would take {needed:,.1f} GB, and at most {most:.1f} GB are made: {advice}")


def choose_indices(
    kind: Kind, numbers: Sequence[int], columns: Sequence[int], layers: Sequence[int], heads: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Indices of the wanted layers and heads among the numbers of all, ascending; empty: all.

    Raises UsageError: one is not there.
    """
    where = f"{kind} attention"
    rows = indices_of("layer", numbers, layers, where)
    return sorted(rows), sorted(indices_of("head", columns, heads, where))


def indices_of(what: str, numbers: Sequence[int], wanted: Sequence[int], where: str) -> list[int]:
    """Indices of the wanted numbers among those of all layers or heads; none wanted: all.

    Raises UsageError: one is not there.
    """
    for number in wanted:
        if number not in numbers:
            known, first, last = ", ".join(map(str, numbers)), numbers[0], numbers[-1]
            if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
                known = f"{first} to {last}"
            some = f"{what}s" if numbers[1:] else f"only {what}"
            raise UsageError(f"--{what} {number}: {where} has {some} {known}")
    return [numbers.index(number) for number in dict.fromkeys(wanted)] or [*range(len(numbers))]


def _evenly(numbers: Sequence[int], count: int) -> list[int]:
    """So many of the numbers at even distances, the first and the last among them."""
    steps = max(1, count - 1)
    return [numbers[round(at * (len(numbers) - 1) / steps)] for at in range(count)]


def _words(tokens: Sequence[Token]) -> tuple[NDArray[np.intp], tuple[Token, ...]]:
    """The place of each word's first token [words], and the words as tokens."""
    groups: list[list[int]] = []
    for place, token in enumerate(tokens):
        if not place or token.word is None or tokens[place - 1].word != token.word:
            groups.append([])
        groups[-1].append(place)
    words = []
    for places in groups:
        first = tokens[places[0]]
        text = "".join(tokens[place].text for place in places)
        words.append(first._replace(text=_BYTES.sub(_characters, text)))
    return np.array([places[0] for places in groups], np.intp), tuple(words)


def _characters(found: re.Match[str]) -> str:
    """Bytes that pieces stand for, written <0xE4>, as the characters that they make together."""
    try:
        return bytes.fromhex(found[0].replace("<0x", "").replace(">", "")).decode("utf-8")
    except UnicodeDecodeError:
        return found[0]
