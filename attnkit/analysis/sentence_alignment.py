"""Word alignments of sentence pairs from the cross attention of a trained run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.axes import MARKS
from attnkit.analysis.capture import Captor
from attnkit.analysis.maps import AttentionMaps, Token
from attnkit.analysis.word_alignment import Gold, LinkCounts, Links, Method, links
from attnkit.data.subword_sampling import MARK
from attnkit.data.tokenizer import clean
from attnkit.errors import UsageError
from attnkit.runs import Run

Step = Literal["reading", "writing"]
STEPS: tuple[Step, ...] = ("writing", "reading")
BLOCK = 256
"""Sentence pairs that are read together."""
BLANK = (".", ".")
"""What is read for a pair with an empty side, so that pairs keep their numbers in messages."""


class Head(NamedTuple):
    """Where alignments are taken from."""

    layer: int
    head: int | None
    """None: the mean over all heads of the layer."""
    step: Step
    """`writing` takes the weights with which a target word is predicted, `reading` those of the
    step that reads it afterwards, which suits the middle layers of deep models (Chen et al. 2020,
    "Accurate Word Alignment Induction from Neural Machine Translation")."""

    def __str__(self) -> str:
        name = "mean of heads" if self.head is None else f"head {self.head}"
        return f"layer {self.layer}, {name}, {self.step}"


class LinkRule(NamedTuple):
    """How weights become links, see `attnkit.analysis.word_alignment.links`."""

    method: Method = "argmax"
    least: float = 0.0


Found = dict[Head, Links]


def words(line: str) -> list[str]:
    """The words that links count: what stands between white space."""
    return clean(line).split()


def heads(run: Run) -> list[Head]:
    """All places where alignments can be taken from, layer by layer, the means last in each.

    Raises:
        UsageError: the model has no cross attention.
    """
    model = run.recipe.model
    if model.shape != "encoder-decoder":
        raise UsageError(
            f"{run.path}: word alignments come from cross attention, which a model of shape "
            f"{model.shape} has none of"
        )
    numbers = [*range(model.heads), None]
    layers = range(model.layers.decoder)
    return [Head(layer, head, step) for layer in layers for head in numbers for step in STEPS]


def usual(run: Run) -> Head:
    """Where to look without gold: the mean over the heads of the last layer but one, writing.

    The layer as Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer
    Models"; of one or two layers the last.
    """
    layers = run.recipe.model.layers.decoder
    return Head(layers - 2 if layers > 2 else layers - 1, None, "writing")


def align(
    run: Run,
    pairs: Iterable[tuple[str, str]],
    wanted: Sequence[Head],
    rule: LinkRule = LinkRule(),  # noqa: B008 (immutable)
    *,
    device: str = "auto",
) -> Iterator[Found]:
    """Links of each sentence pair by each wanted head; none where a side is empty.

    Args:
        run: a finished one.
        pairs: source and target lines.
        wanted: some of `heads`.
        rule: how weights become links.
        device: auto takes a GPU where there is one.

    Raises:
        UsageError: the model has no cross attention, or no such layer or head.
        DataError: a line is longer than the model reads.
    """
    model = run.recipe.model
    known = heads(run)
    for head in wanted:
        if head not in known:
            raise UsageError(
                f"{head}: cross attention has layers 0 to {model.layers.decoder - 1} with heads 0 "
                f"to {model.heads - 1}"
            )
    layers = sorted({head.layer for head in wanted})
    captor = Captor(run, kinds=["cross"], layers=layers, device=device)
    rest = iter(pairs)
    first = 0
    while block := list(islice(rest, BLOCK)):
        sizes = [(len(words(source)), len(words(target))) for source, target in block]
        read = captor.read(
            [pair if all(size) else BLANK for pair, size in zip(block, sizes, strict=True)],
            first=first,
        )
        for size, capture in zip(sizes, read, strict=True):
            if all(size):
                yield _links(capture.maps["cross"], wanted, rule, size)
            else:
                yield dict.fromkeys(wanted, frozenset())
        first += len(block)


def quality(found: Iterable[Found], golds: Iterable[Gold]) -> dict[Head, LinkCounts]:
    """How the links of each head agree with gold, over all sentence pairs."""
    total: dict[Head, LinkCounts] = {}
    for made, right in zip(found, golds, strict=True):
        for head, own in made.items():
            total[head] = total.get(head, LinkCounts()).plus(LinkCounts.of(own, right))
    return total


def best(scores: dict[Head, LinkCounts]) -> Head:
    """The head with the lowest alignment error rate; of equal ones the first."""
    return min(scores, key=lambda head: scores[head].error)


def _links(
    maps: AttentionMaps, wanted: Sequence[Head], rule: LinkRule, sizes: tuple[int, int]
) -> Found:
    """Links of one sentence pair."""
    layers = [layer.number for layer in maps.layers]
    by_step = {step: word_weights(maps, step, sizes) for step in {head.step for head in wanted}}
    out: Found = {}
    for head in wanted:
        of_layer = by_step[head.step][layers.index(head.layer)]
        weights = of_layer.mean(0) if head.head is None else of_layer[maps.heads.index(head.head)]
        out[head] = links(weights, *rule)
    return out


def word_weights(
    maps: AttentionMaps, step: Step, sizes: tuple[int, int]
) -> Float[NDArray[np.float32], "L H T S"]:
    """Weights between the words of two lines; attention to a word sums, from a word averages.

    Args:
        maps: cross attention; queries are what the decoder read, from its begin token on.
        step: which row belongs to a target token, see `Head`.
        sizes: words of the source and of the target; one without a token gets zeros.
    """
    queries = maps.queries
    if step == "writing":
        # the row that read one token wrote the next; the last wrote the end token
        queries = (*queries[1:], queries[0])
    merged = replace(maps, queries=_numbered(queries), keys=_numbered(maps.keys)).by_word()
    rows, columns = (
        [(place, token.word) for place, token in enumerate(side) if token.word is not None]
        for side in (merged.queries, merged.keys)
    )
    out = np.zeros((*merged.weights.shape[:2], sizes[1], sizes[0]), np.float32)
    kept = merged.weights[:, :, [place for place, _ in rows]][..., [place for place, _ in columns]]
    out[:, :, [[word] for _, word in rows], [word for _, word in columns]] = kept
    return out


def _numbered(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """Tokens with the number of their word in the line.

    `Token.word` skips special tokens of the recipe, such as separators; here they are text.
    """
    out = []
    word = 0
    begun = False
    for token in tokens:
        if token.id in MARKS:
            out.append(token._replace(word=None))
            continue
        marks = token.text.count(MARK)
        leads = token.text.startswith(MARK)
        word += begun and leads
        out.append(token._replace(word=word))
        word += marks - leads
        begun = True
    return tuple(out)
