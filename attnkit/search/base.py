"""Common parts of all search methods: hypotheses, the interface of a model, top-k and constraints."""

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
"""torch.topk on a CPU is fast if a row has at least SHORT_LIST * k elements; folded rows keep that many."""
LOGITS_AT_ONCE = {"cpu": 2**20}
"""Maximum number of logits computed at a time, by device type (default: all): a small chunk stays in the cache."""
FEW = 16
"""Number of rows below which torch.max finds their maxima faster than `top`."""
LOWEST_FOLD, HIGHEST_FOLD = 3, 8
"""Minimum and maximum number of lines into which `highest` folds a row."""


class Projection(Protocol):
    """Projection of hidden states to scores of the vocabulary, such as torch.nn.Linear."""

    @property
    def out_features(self) -> int:
        """Size of the vocabulary, V."""

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """Map [R, W] to [R, V]."""


class Predictor(Protocol):
    """Part of a model, or of several combined models, that a search uses."""

    @property
    def output(self) -> Projection:
        """Projection of the hidden states that `advance` returns."""

    def advance(self, ids: Int[Tensor, "R t"], state: Any, /) -> tuple[Tensor, Any]:
        """Read tokens, as `Model.advance`; the state has `select`, as `Decode`.

        Rows of outputs that have ended may contain any token of the vocabulary.
        """


class Hypothesis(NamedTuple):
    """One output of a search."""

    ids: list[int]
    """Tokens, without BOS and EOS."""
    score: float
    """logprob / length ** length_penalty; the length is in tokens, EOS included."""
    logprob: float
    """Log-probability (nats) of the tokens and EOS under the model."""
    complete: bool = True
    """False: ended without EOS, at max_length or because the constraints banned every token."""


def longest_output(model: Model, source: Int[Tensor, "B S"], max_length: int) -> int:
    """Return max_length limited by the model's positions. Raises DataError if a decoder's source leaves none."""
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
    """Return the hidden state that predicts the next token, and the new state."""
    hidden, state = model.advance(ids, state)
    return hidden[:, -1], state


def predict(model: Predictor, hidden: Float[Tensor, "R W"]) -> Float[Tensor, "R V"]:
    """Return the log-probabilities of the next token in a new tensor."""
    logits = model.output(hidden)
    # sums over many tokens in half precision would lose the order of close hypotheses
    wide = logits.to(score_type(logits))
    # in place on a CPU, which reads each row before it writes it: a second [R, V] matrix costs more time
    return torch.log_softmax(wide, -1, out=wide if wide.device.type == "cpu" else None)


def score_type(like: Tensor) -> torch.dtype:
    """Return the dtype of log-probabilities for hidden states or logits `like`: float32 at least."""
    return torch.float32 if like.element_size() < 4 else like.dtype


def top(
    scores: Float[Tensor, "R V"], k: int, exact: bool, before: Float[Tensor, "b W"] | None = None
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"], Bool[Tensor, ""]]:
    """Return the k highest scores of each row in descending order, their indices, and whether ties remain.

    With `before` the W rows of a sentence are searched as one row, after `before` is added to each; an index is then
    row * V + token. With `exact`, equal scores are in order of index. Otherwise their order depends on the device, and
    the caller repeats the call with `exact` if ties remain: all other steps avoid a second wait for the device.
    """
    rows = torch.unflatten(scores, 0, (-1, 1) if before is None else before.shape)  # [b, W, V]
    values, places = highest(rows, before, min(k + 1, rows[0].numel()))  # one more shows ties
    ties = (values.diff() == 0).any()  # neighbours of -inf differ by NaN
    if exact and ties:
        values, places = in_order(rows, before, values, places, k)
        ties = torch.zeros_like(ties)
    return values[:, :k], places[:, :k], ties


def best(scores: Float[Tensor, "R V"]) -> tuple[Float[Tensor, "R 1"], Int[Tensor, "R 1"]]:
    """Return the maximum of each row and its index, the lowest index of equal scores (unless all are -inf)."""
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
    """Return the k highest of the n scores that `highest` found, equal scores in order of index."""
    places, order = places.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    places, last = places.gather(1, order), values[:, -1]
    # if the k-th score equals the n-th, `highest` may have left out equal scores of lower index: sort the whole row
    cut = (values[:, min(k, values.shape[1]) - 1] == last) & (last > -math.inf)
    complete = values.shape[1] == scores[0].numel()  # nothing was left out
    if not complete and len(unsure := cut.nonzero().squeeze(1)):
        whole = plus(scores[unsure], None if before is None else before[unsure]).flatten(1)
        exact = whole.sort(dim=1, descending=True, stable=True)
        values[unsure, :k], places[unsure, :k] = (one[:, :k] for one in exact)
    return values[:, :k], places[:, :k]


def plus(scores: Float[Tensor, "b W V"], before: Float[Tensor, "b W"] | None) -> Tensor:
    """Return the scores plus the `before` of each row."""
    return scores if before is None else scores + before.unsqueeze(2)


def highest(
    scores: Float[Tensor, "b W V"], before: Float[Tensor, "b W"] | None, k: int
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """Return torch.topk of each sentence; on a CPU in two stages if rows are long.

    Once a row is folded into a matrix, its k highest scores lie in the k columns with the highest maxima.
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
        values += before.gather(1, places // length)  # `before` of each index's row
    values, order = values.topk(k)
    return values, places.gather(1, order)


@cache
def fold_places(height: int, width: int, length: int, rows: int) -> tuple[Int[Tensor, "height 1"], Int[Tensor, " n"]]:
    """Return the offset of each line of a folded row, and the indices of all rows that are in no line."""
    starts = torch.arange(rows)[:, None] * length
    rest = starts + torch.arange(height * width, length)  # fewer than `height` per row
    return torch.arange(height)[:, None] * width, rest.flatten()


def bucket_size(sentences: int) -> int:
    """Return the multiple to which batch sizes near this one are rounded: a power of two, at most a quarter of it.

    oneDNN compiles a matrix product for each number of rows, which can take longer than the product itself.
    """
    return max(1, 1 << sentences.bit_length() >> 3)


def compact_batch(model: Predictor, done: Sequence[bool]) -> list[int] | None:
    """Return the previous row of each row of the compacted batch, or None if the batch does not shrink.

    On a CPU, where matrix products are compiled for each size, the batch shrinks to multiples of `bucket_size` only:
    finished sentences fill it up, and their further tokens are ignored.
    """
    going = [sentence for sentence, ended in enumerate(done) if not ended]
    compiled = isinstance(model, Model | FastDecoder) and model.output.weight.device.type == "cpu"
    size = len(going) + (-len(going) % bucket_size(len(going)) if compiled else 0)
    if size >= len(done):
        return None
    others = (sentence for sentence, ended in enumerate(done) if ended)
    kept = {*going, *islice(others, size - len(going))}
    # sentences from the end move into the rows of sentences that leave, so that few states are copied
    late = iter(sorted(sentence for sentence in kept if sentence >= size))
    return [place if place in kept else next(late) for place in range(size)]


def normalised(logprob: float, length: int, length_penalty: float) -> float:
    """Return the score of a hypothesis of `length` tokens, EOS included."""
    return logprob / float(max(length, 1) ** length_penalty)


def refuse_nan(lines: Sequence[int]) -> None:
    """Raise NotFiniteError for a batch of lines (0-based) in which the model returned NaN."""
    raise NotFiniteError(
        f"the model answers NaN in the batch of lines {min(lines) + 1} to {max(lines) + 1}: "
        "its weights are damaged; train again or use another checkpoint"
    )


def constrain(
    scores: Float[Tensor, "R V"], spec: SearchConfig, produced: int, prefix: Int[Tensor, "R t"] | None
) -> None:
    """Ban tokens by setting them to -inf in place; the other scores remain the model's log-probabilities.

    PAD, BOS and UNK are always banned: they represent no text. With no_repeat_ngram = n > 0, so is each token that
    would complete an n-gram of the `prefix` (only this constraint reads the prefix). EOS is banned before min_length
    tokens are `produced`, unless no other token is left.
    """
    scores[:, PAD:EOS] = -math.inf  # UNK and BOS are between them
    if spec.no_repeat_ngram and prefix is not None and prefix.shape[1] >= spec.no_repeat_ngram:
        ban_repeats(scores, prefix, spec.no_repeat_ngram)
    if produced < spec.min_length:
        end = scores[:, EOS].clone()
        scores[:, EOS] = -math.inf
        scores[:, EOS] = end.masked_fill(scores.amax(1) > -math.inf, -math.inf)  # kept if no other token is left


def next_scores(
    model: Predictor,
    hidden: Float[Tensor, "R W"],
    spec: SearchConfig,
    produced: int,
    prefix: Int[Tensor, "R t"] | None,
    group: int = 1,
) -> Iterator[tuple[slice, Float[Tensor, "r V"]]]:
    """Yield slices of rows with their log-probabilities of the next token, constrained by `constrain`.

    Each slice but the last has `group` times a power of two rows, so that matrix products have few sizes.
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
    """Ban in place each token that followed an earlier occurrence of the last order - 1 tokens."""
    length = prefix.shape[1]
    following = prefix[:, order - 1 :]  # the token after each window of order - 1 tokens
    windows = following.shape[1]
    repeated = following != PAD
    for offset in range(order - 1):
        last = prefix[:, length - order + 1 + offset, None]
        repeated = repeated & (prefix[:, offset : offset + windows] == last)
    # windows that differ ban PAD instead, which is banned anyway
    scores.scatter_(1, following.where(repeated, PAD), -math.inf)
