"""Word alignments of sentence pairs from the cross attention of a trained run.

A link i-j means that word i of the source and word j of the target, both from 0, translate each other; its text form
is the Pharaoh format. Gold alignments may have possible links, written i?j, besides sure links.

Source: Och and Ney 2003, "A Systematic Comparison of Various Statistical Alignment Models", section 5.1, for the
alignment error rate.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import tee
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.capture import MapReader
from attnkit.analysis.inputs import SPECIAL_IDS
from attnkit.analysis.maps import STEPS, AttentionMaps, Step, Token, indices_of
from attnkit.data.text_form import MARK, clean
from attnkit.errors import DataError, UsageError
from attnkit.runs import Run
from attnkit.text import quoted

Link = tuple[int, int]
Links = frozenset[Link]
Method = Literal["argmax", "mutual", "threshold"]
METHODS: tuple[Method, ...] = ("argmax", "mutual", "threshold")
BLANK = (".", ".")
"""Replacement for a pair with an empty side, so that messages number the pairs correctly."""

_LINK = re.compile(r"(\d{1,9})([-?p])(\d{1,9})")


class Head(NamedTuple):
    """Origin of alignments: weights of one head."""

    layer: int
    head: int | None
    """None: the mean over all heads of the layer."""
    step: Step
    """`output` selects the weights of the step that predicts a target word, `input` those of the next step, which
    reads it; the latter suits the middle layers of deep models (Chen et al. 2020, "Accurate Word Alignment Induction
    from Neural Machine Translation")."""

    def __str__(self) -> str:
        name = "mean of heads" if self.head is None else f"head {self.head}"
        return f"layer {self.layer}, {name}, {self.step}"


class LinkRule(NamedTuple):
    """Conversion of weights to links; see `links`."""

    method: Method = "argmax"
    least: float = 0.0


HeadLinks = dict[Head, Links]
"""Links of one sentence pair for each head."""


def words(line: str) -> list[str]:
    """Split a line into the words that links count, by white space."""
    return clean(line).split()


def heads(run: Run) -> list[Head]:
    """Return all heads, layer by layer, with the mean last in each. Raises UsageError without cross attention."""
    model = run.recipe.model
    if model.shape != "encoder-decoder":
        raise UsageError(
            f"{run.path}: word alignments need cross attention, which a model of shape {model.shape} does not have"
        )
    numbers = [*range(model.heads), None]
    return [Head(layer, head, step) for layer in range(model.cross_layers) for head in numbers for step in STEPS]


def default_head(run: Run) -> Head:
    """Return the default without gold alignments: the mean over heads of the second-to-last layer, output.

    The layer follows Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models"; with one or
    two layers it is the last.
    """
    layers = run.recipe.model.cross_layers
    return Head(layers - 2 if layers > 2 else layers - 1, None, "output")


def align(
    run: Run,
    pairs: Iterable[tuple[str, str]],
    wanted: Sequence[Head],
    rule: LinkRule = LinkRule(),  # noqa: B008 (immutable)
    *,
    device: str = "auto",
    warn: Callable[[str], object] = lambda text: None,
) -> Iterator[HeadLinks]:
    """Yield the links of each sentence pair for each of the `wanted` heads; no links if a side is empty.

    `warn` is called after the last pair with a note on pairs that are longer than in training.

    Raises:
        UsageError: If the model has no cross attention, or no such layer or head.
        DataError: If a line exceeds the length limit of the model.
    """
    heads(run)  # raises for a model without cross attention
    layers = sorted({head.layer for head in wanted})
    reader = MapReader(run, kinds=["cross"], layers=layers, step="input", device=device)
    numbers = [head.head for head in wanted if head.head is not None]
    indices_of("head", reader.heads["cross"], numbers, "cross attention")
    pairs, lines = tee(pairs)
    captures = reader.read_pairs(pair if all(map(words, pair)) else BLANK for pair in lines)
    notes: list[str] = []
    for number, ((source, target), capture) in enumerate(zip(pairs, captures, strict=True), 1):
        if note := capture.facts.get("note"):
            notes.append(f"line {number}: {note}")
        sizes, maps = (len(words(source)), len(words(target))), capture.maps["cross"]
        by_head: HeadLinks = dict.fromkeys(wanted, frozenset())
        if all(sizes):
            steps = {step: word_weights(maps, step, sizes) for step in {h.step for h in wanted}}
            for head in wanted:
                rows = steps[head.step][layers.index(head.layer)]
                weights = rows.mean(0) if head.head is None else rows[maps.heads.index(head.head)]
                by_head[head] = links(weights, *rule)
        yield by_head
    if notes:
        warn(notes[0] + (f"; {len(notes) - 1:,} more line{'s' * (len(notes) != 2)} with notes" if notes[1:] else ""))


def word_weights(maps: AttentionMaps, step: Step, sizes: tuple[int, int]) -> Float[NDArray[np.float32], "L H T S"]:
    """Return weights between words, summed over the tokens of a source word, averaged over those of a target word.

    Args:
        maps: cross attention whose rows are labeled by decoder input, from the begin token on.
        step: which row belongs to a target token; see `Head`.
        sizes: numbers of source and target words; a word without a token gets zeros.
    """
    queries = maps.queries
    if step == "output":
        # the row that reads a token predicts the next token; the last row predicts the end token
        queries = (*queries[1:], queries[0])
    by_word = replace(maps, queries=_numbered(queries), keys=_numbered(maps.keys)).by_word()
    rows, columns = (
        {position: token.word for position, token in enumerate(side) if token.word is not None}
        for side in (by_word.queries, by_word.keys)
    )
    out = np.zeros((*by_word.weights.shape[:2], sizes[1], sizes[0]), np.float32)
    weights = by_word.weights[:, :, [*rows]][..., [*columns]]
    out[:, :, np.array([*rows.values()], int)[:, None], [*columns.values()]] = weights
    return out


def _numbered(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Return tokens with the index of their word in the line; special tokens of the recipe are text here."""
    out, word, started = [], 0, False
    for token in tokens:
        if token.id in SPECIAL_IDS:
            out.append(token._replace(word=None))
            continue
        marks = token.text.count(MARK)
        begins_word = token.text.startswith(MARK)
        word += started and begins_word
        out.append(token._replace(word=word))
        word += marks - begins_word
        started = True
    return tuple(out)


def links(weights: Float[NDArray[np.float32], "T S"], method: Method = "argmax", least: float = 0.0) -> Links:
    """Return links from the weights that target words give to source words.

    argmax links each target word to the source word of its largest weight; mutual only if that weight is also the
    largest that the source word gets; threshold links all weights of at least `least`, which also bounds the other two
    methods. A weight of zero or below never links.
    """
    if not weights.size:
        return frozenset()
    # at least the smallest positive float, so that a weight of 0 never links
    linked = weights >= max(least, np.nextafter(0, 1, dtype=np.float32))
    if method != "threshold":
        linked &= np.arange(weights.shape[1]) == weights.argmax(1)[:, None]
    if method == "mutual":
        linked &= np.arange(weights.shape[0])[:, None] == weights.argmax(0)
    targets, sources = linked.nonzero()
    return frozenset(zip(sources.tolist(), targets.tolist(), strict=True))


def pharaoh(links: Iterable[Link]) -> str:
    """Format links as `0-0 1-2 2-1`, ordered by source word."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


class Gold(NamedTuple):
    """Alignment of a sentence pair by human annotators."""

    sure: Links
    possible: Links
    """Possible links, including the sure links."""


def gold(line: str, where: str, source: int, target: int) -> Gold:
    """Parse a line such as `0-0 1?2 2p3` (? or p: only possible). Raises DataError if malformed or out of range."""
    sure, possible = set(), set()
    for part in line.split():
        match = _LINK.fullmatch(part)
        if match is None:
            raise DataError(
                f"{where}: {quoted(part)} is not a valid link: write 0-0 (sure) or 0?0 (possible), "
                "source word first, both counted from 0"
            )
        link = (int(match[1]), int(match[3]))
        if link[0] >= source or link[1] >= target:
            raise DataError(f"{where}: {part}: the source has {source} words and the target {target}, counted from 0")
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


class LinkCounts(NamedTuple):
    """Numbers of predicted and gold links of some sentence pairs."""

    predicted: int = 0
    sure: int = 0
    """Number of sure gold links."""
    predicted_sure: int = 0
    predicted_possible: int = 0

    @classmethod
    def of(cls, predicted: Links, gold: Gold) -> "LinkCounts":
        """Return the counts of one sentence pair."""
        sure, possible = predicted & gold.sure, predicted & gold.possible
        return cls(len(predicted), len(gold.sure), len(sure), len(possible))

    def plus(self, other: "LinkCounts") -> "LinkCounts":
        """Return the sum of both."""
        return LinkCounts(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def precision(self) -> float:
        """Percentage of predicted links that are possible; 100 without predicted links."""
        return 100 * self.predicted_possible / self.predicted if self.predicted else 100.0

    @property
    def recall(self) -> float:
        """Percentage of sure links that are predicted; 100 without sure links."""
        return 100 * self.predicted_sure / self.sure if self.sure else 100.0

    @property
    def error(self) -> float:
        """Alignment error rate in percent: 1 - (|A and S| + |A and P|) / (|A| + |S|)."""
        links = self.predicted + self.sure
        return 100 * (1 - (self.predicted_sure + self.predicted_possible) / links) if links else 0.0


def quality(predictions: Iterable[HeadLinks], golds: Iterable[Gold]) -> dict[Head, LinkCounts]:
    """Return how well the links of each head agree with gold alignments, over all sentence pairs."""
    total: dict[Head, LinkCounts] = {}
    for predicted, gold in zip(predictions, golds, strict=True):
        for head, links in predicted.items():
            total[head] = total.get(head, LinkCounts()).plus(LinkCounts.of(links, gold))
    return total


def best(scores: dict[Head, LinkCounts]) -> Head:
    """Return the head with the lowest alignment error rate, the first if several are equal."""
    return min(scores, key=lambda head: scores[head].error)
