"""What every search shares: hypotheses, what it needs of a model, and the arithmetic of a step."""

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.data.tokenizer import EOS, PAD
from attnkit.errors import DataError, NotFiniteError
from attnkit.models.base import Model
from attnkit.models.fast_decoder import FastDecoder
from attnkit.recipe.schema import SearchConfig

SHORT_LIST = 64
"""torch.topk on a CPU is fast where a row has at least this many times k elements."""
LOGITS_AT_ONCE = {"cpu": 2**20}
"""Most logits made at a time, by device; elsewhere all.  What fits in a cache is quickly reread."""
FEW = 16
"""Rows below which torch.max finds the highest elements faster than `top`."""
LOWEST_FOLD, HIGHEST_FOLD = 3, 8
"""Into how many lines a row is folded to find its highest elements."""


class Projection(Protocol):
    """From hidden states to scores of the vocabulary, as torch.nn.Linear does."""

    @property
    def out_features(self) -> int:
        """V."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """[R, W] to [R, V]."""


class Predictor(Protocol):
    """The part of a model, or of several combined, that a search uses."""

    @property
    def output(self) -> Projection:
        """Applied to what `advance` answers."""

    def advance(self, ids: Int[Tensor, "R t"], state: Any, /) -> tuple[Tensor, Any]:
        """See `Model.advance`; the state has `select`, as `Decode` has.

        For outputs that have ended any token of the vocabulary may come.
        """


class Hypothesis(NamedTuple):
    """One output of a search."""

    ids: list[int]
    """Tokens, without BOS and EOS."""
    score: float
    """logprob / length ** length_penalty; the length is in tokens, EOS included."""
    logprob: float
    """The model's own log-probability (nats) of the tokens and of EOS."""
    complete: bool = True
    """False: closed without EOS, by max_length or because the constraints left no token."""


def longest_output(model: Model, source: Int[Tensor, "B S"], max_length: int) -> int:
    """The most tokens that a sentence may get: max_length, or what the model's positions allow.

    Raises DataError: no position is left after the source of a decoder-only model.
    """
    if model.limit is None:
        return max_length
    left = model.limit - (source.shape[1] if model.shape == "decoder" else 0)
    if left < 1:
        raise DataError(
            f"the input has {source.shape[1]} tokens and the model {model.limit} positions for "
            "input and output together: shorten the input"
        )
    return min(max_length, left)


def advance(model: Predictor, ids: Int[Tensor, "R 1"], state: Any) -> tuple[Float[Tensor, "R W"], Any]:
    """What the next token is predicted from, and the new state."""
    hidden, state = model.advance(ids, state)
    return hidden[:, -1], state


def predict(model: Predictor, hidden: Float[Tensor, "R W"]) -> Float[Tensor, "R V"]:
    """Log-probabilities of the next token, in a fresh tensor."""
    logits = model.output(hidden)
    # sums over many tokens in half precision would lose the order of close hypotheses
    wide = logits.to(score_type(logits))
    # in place on a CPU, which writes a row when it has read it: a second matrix as large costs more
    return torch.log_softmax(wide, -1, out=wide if wide.device.type == "cpu" else None)


def score_type(like: Tensor) -> torch.dtype:
    """The type of log-probabilities of a model whose states are `like`: float32 at least."""
    return torch.float32 if like.element_size() < 4 else like.dtype


def top(
    scores: Float[Tensor, "R V"], k: int, exact: bool, before: Float[Tensor, "b W"] | None = None
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"], Bool[Tensor, ""]]:
    """The k highest of each row in order, equal ones by lowest place: (scores, places, ties left).

    With `before` the W rows of a sentence are one, each with its own addend; a place is then row x V + token. Without
    `exact` the choice among equal scores is the device's. A caller that then learns of ties calls again with it, which
    spares every other step a second wait for the device.
    """
    rows = torch.unflatten(scores, 0, (-1, 1) if before is None else before.shape)  # [b, W, V]
    values, places = highest(rows, before, min(k + 1, rows[0].numel()))  # one more shows ties
    ties = (values.diff() == 0).any()  # neighbours of -inf differ by NaN
    if exact and ties:
        values, places = in_order(rows, before, values, places, k)
        ties = torch.zeros_like(ties)
    return values[:, :k], places[:, :k], ties


def best(scores: Float[Tensor, "R V"]) -> tuple[Float[Tensor, "R 1"], Int[Tensor, "R 1"]]:
    """The highest of each row and its place, the lowest of equal ones (unless all are -inf)."""
    if scores.device.type == "cpu" and len(scores) >= FEW:
        return top(scores, 1, exact=True)[:2]
    value, place = scores.max(1, keepdim=True)
    return value, place


def in_order(
    scores: Float[Tensor, "b W V"],
    before: Float[Tensor, "b W"] | None,
    values: Float[Tensor, "b n"],
    places: Int[Tensor, "b n"],
    k: int,
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """The k highest of the n that `highest` found, equal ones by lowest place."""
    places, order = places.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    places, last = places.gather(1, order), values[:, -1]
    # where the k-th equals the last of the n, equal ones of lower place may have been left out
    cut = (values[:, min(k, values.shape[1]) - 1] == last) & (last > -math.inf)
    complete = values.shape[1] == scores[0].numel()  # nothing was left out
    if not complete and len(unsure := cut.nonzero().squeeze(1)):
        whole = plus(scores[unsure], None if before is None else before[unsure]).flatten(1)
        exact = whole.sort(dim=1, descending=True, stable=True)
        values[unsure, :k], places[unsure, :k] = (one[:, :k] for one in exact)
    return values[:, :k], places[:, :k]


def plus(scores: Float[Tensor, "b W V"], before: Float[Tensor, "b W"] | None) -> Tensor:
    """The scores of all rows, each with its addend."""
    return scores if before is None else scores + before.unsqueeze(2)


def highest(
    scores: Float[Tensor, "b W V"], before: Float[Tensor, "b W"] | None, k: int
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """torch.topk of each sentence; on a CPU in two stages where rows are long.

    The k highest lie in the k columns of highest maximum, once a row is folded into a matrix.
    """
    length = scores.shape[2]  # V
    height = min(HIGHEST_FOLD, scores.shape[1] * length // (SHORT_LIST * k))
    if scores.device.type != "cpu" or height < LOWEST_FOLD:
        values, places = plus(scores, before).flatten(1).topk(k)
        return values, places
    width = length // height
    # [b, W, height, width]: column c holds the tokens c, c + width, c + 2 width, ...
    folded = torch.unflatten(scores[..., : height * width], 2, (height, width))
    columns = plus(folded.amax(2), before).flatten(1).topk(k).indices
    inside, rest = fold_places(height, width, length, scores.shape[1])
    first = torch.add(columns, columns // width, alpha=length - width)  # row x V + column
    places = (inside + first[:, None]).flatten(1)  # [b, height k]
    if len(rest):
        places = torch.cat((places, rest.expand(len(scores), -1)), 1)
    values = scores.flatten(1).gather(1, places)
    if before is not None:
        values += before.gather(1, places // length)  # that of each place's row
    values, order = values.topk(k)
    return values, places.gather(1, order)


@cache
def fold_places(height: int, width: int, length: int, rows: int) -> tuple[Int[Tensor, "height 1"], Int[Tensor, " n"]]:
    """Where each line of a folded row begins, and the places of all rows that no line holds."""
    starts = torch.arange(rows)[:, None] * length
    rest = starts + torch.arange(height * width, length)  # fewer than the lines for each row
    return torch.arange(height)[:, None] * width, rest.flatten()


def bucket_size(sentences: int) -> int:
    """What batch sizes near this one are rounded to: a power of two, at most a quarter of them.

    oneDNN compiles a product for every number of rows, which can take longer than to compute it.
    """
    return max(1, 1 << sentences.bit_length() >> 3)


def compact_batch(model: Predictor, done: Sequence[bool]) -> list[int] | None:
    """The sentences that stay in the batch, by their new places; None: all stay where they are.

    On a CPU, whose products are compiled for each size, the batch shrinks to multiples of
    `bucket_size` only: finished sentences fill it up, and what is decoded of them is ignored.
    """
    going = [sentence for sentence, ended in enumerate(done) if not ended]
    compiled = isinstance(model, Model | FastDecoder) and model.output.weight.device.type == "cpu"
    size = len(going) + (-len(going) % bucket_size(len(going)) if compiled else 0)
    if size >= len(done):
        return None
    others = (sentence for sentence, ended in enumerate(done) if ended)
    kept = {*going, *islice(others, size - len(going))}
    # sentences from the end take the places of those that leave, so that few states are copied
    late = iter(sorted(sentence for sentence in kept if sentence >= size))
    return [place if place in kept else next(late) for place in range(size)]


def normalised(logprob: float, length: int, length_penalty: float) -> float:
    """Score of a hypothesis of `length` tokens, EOS included."""
    return logprob / float(max(length, 1) ** length_penalty)


def refuse_nan(lines: Sequence[int]) -> None:
    """Raise NotFiniteError: the model answered NaN in the batch of these lines (0-based)."""
    raise NotFiniteError(
        f"the model answers NaN in the batch of lines {min(lines) + 1} to {max(lines) + 1}: "
        "its weights are damaged; train again or use another checkpoint"
    )


def constrain(
    scores: Float[Tensor, "R V"], spec: SearchConfig, produced: int, prefix: Int[Tensor, "R t"] | None
) -> None:
    """Ban tokens in place, by setting them to -inf; scores stay the model's own log-probabilities.

    PAD, BOS and UNK are never produced: they stand for no text. Where no_repeat_ngram is n > 0, neither is a token
    that would complete an n-gram that the `prefix` already has (nothing else needs the prefix). EOS is banned before
    min_length tokens are `produced`, unless nothing else is left.
    """
    scores[:, PAD:EOS] = -math.inf  # with UNK and BOS between them
    if spec.no_repeat_ngram and prefix is not None and prefix.shape[1] >= spec.no_repeat_ngram:
        ban_repeats(scores, prefix, spec.no_repeat_ngram)
    if produced < spec.min_length:
        end = scores[:, EOS].clone()
        scores[:, EOS] = -math.inf
        scores[:, EOS] = end.masked_fill(scores.amax(1) > -math.inf, -math.inf)  # kept if alone


def next_scores(
    model: Predictor,
    hidden: Float[Tensor, "R W"],
    spec: SearchConfig,
    produced: int,
    prefix: Int[Tensor, "R t"] | None,
    group: int = 1,
) -> Iterator[tuple[slice, Float[Tensor, "r V"]]]:
    """Log-probabilities of the next token, as `constrain` leaves them, for some rows at a time.

    All parts but the last have a power of two of groups of so many rows, so that few sizes occur.
    """
    size = len(hidden)
    if most := LOGITS_AT_ONCE.get(hidden.device.type):
        groups = max(1, most // (group * model.output.out_features))
        size = group << groups.bit_length() - 1
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        scores = predict(model, hidden[rows])
        constrain(scores, spec, produced, None if prefix is None else prefix[rows])
        yield rows, scores


def ban_repeats(scores: Float[Tensor, "R V"], prefix: Int[Tensor, "R t"], order: int) -> None:
    """Ban, in place, each token that followed an earlier copy of the last order - 1 tokens."""
    length = prefix.shape[1]
    following = prefix[:, order - 1 :]  # the token after each window of order - 1 tokens
    windows = following.shape[1]
    repeated = following != PAD
    for offset in range(order - 1):
        last = prefix[:, length - order + 1 + offset, None]
        repeated = repeated & (prefix[:, offset : offset + windows] == last)
    # where the window differs, PAD is banned once more instead
    scores.scatter_(1, following.where(repeated, PAD), -math.inf)
