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
MIN_TOPK_ROWS = 16
"""Number of rows below which torch.max finds their maxima faster than `topk`."""
MIN_FOLD, MAX_FOLD = 3, 8
"""Minimum and maximum number of lines into which `fast_topk` folds a row."""


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


def max_output_length(model: Model, source: Int[Tensor, "B S"], max_length: int) -> int:
    """Return max_length limited by the model's positions. Raises DataError if a decoder's source leaves none."""
    if model.limit is None:
        return max_length
    left = model.limit - (source.shape[1] if model.shape == "decoder" else 0)
    if left < 1:
        raise DataError(
            f"the input has {source.shape[1]} tokens, but the model has {model.limit} positions for input "
            "and output together: shorten the input"
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
    logits = logits.to(score_type(logits))
    # in place on a CPU, which reads each row before it writes it: a second [R, V] matrix costs more time
    return torch.log_softmax(logits, -1, out=logits if logits.device.type == "cpu" else None)


def score_type(like: Tensor) -> torch.dtype:
    """Return the dtype of log-probabilities for hidden states or logits `like`: float32 at least."""
    return torch.float32 if like.element_size() < 4 else like.dtype


def topk(
    scores: Float[Tensor, "R V"], k: int, exact: bool, offsets: Float[Tensor, "b W"] | None = None
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"], Bool[Tensor, ""]]:
    """Return the k highest scores of each row in descending order, their indices, and whether ties remain.

    With `offsets` the W rows of a sentence are searched as one row, after an offset is added to each; an index is then
    row * V + token. With `exact`, equal scores are in order of index. Otherwise their order depends on the device, and
    the caller repeats the call with `exact` if ties remain: all other steps avoid a second wait for the device.
    """
    rows = torch.unflatten(scores, 0, (-1, 1) if offsets is None else offsets.shape)  # [b, W, V]
    values, indices = fast_topk(rows, offsets, min(k + 1, rows[0].numel()))  # one more shows ties
    ties = (values.diff() == 0).any()  # neighbors of -inf differ by NaN
    if exact and ties:
        values, indices = sort_ties(rows, offsets, values, indices, k)
        ties = torch.zeros_like(ties)
    return values[:, :k], indices[:, :k], ties


def row_max(scores: Float[Tensor, "R V"]) -> tuple[Float[Tensor, "R 1"], Int[Tensor, "R 1"]]:
    """Return the maximum of each row and its index, the lowest index of equal scores (unless all are -inf)."""
    if scores.device.type == "cpu" and len(scores) >= MIN_TOPK_ROWS:
        return topk(scores, 1, exact=True)[:2]
    value, index = scores.max(1, keepdim=True)
    return value, index


def sort_ties(
    scores: Float[Tensor, "b W V"],
    offsets: Float[Tensor, "b W"] | None,
    values: Float[Tensor, "b n"],
    indices: Int[Tensor, "b n"],
    k: int,
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """Return the k highest of the n scores that `fast_topk` found, equal scores in order of index."""
    indices, order = indices.sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    indices, last = indices.gather(1, order), values[:, -1]
    # if the k-th score equals the n-th, `fast_topk` may have left out equal scores of lower index: sort the whole row
    cut = (values[:, min(k, values.shape[1]) - 1] == last) & (last > -math.inf)
    complete = values.shape[1] == scores[0].numel()  # nothing was left out
    if not complete and len(cut_rows := cut.nonzero().squeeze(1)):
        whole = add_offsets(scores[cut_rows], None if offsets is None else offsets[cut_rows]).flatten(1)
        exact = whole.sort(dim=1, descending=True, stable=True)
        values[cut_rows, :k], indices[cut_rows, :k] = exact.values[:, :k], exact.indices[:, :k]
    return values[:, :k], indices[:, :k]


def add_offsets(scores: Float[Tensor, "b W V"], offsets: Float[Tensor, "b W"] | None) -> Tensor:
    """Add the offset of each row to its scores."""
    return scores if offsets is None else scores + offsets.unsqueeze(2)


def fast_topk(
    scores: Float[Tensor, "b W V"], offsets: Float[Tensor, "b W"] | None, k: int
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"]]:
    """Return torch.topk of each sentence; on a CPU in two stages if rows are long.

    Once a row is folded into a matrix, its k highest scores lie in the k columns with the highest maxima.
    """
    length = scores.shape[2]  # V
    height = min(MAX_FOLD, scores.shape[1] * length // (SHORT_LIST * k))
    if scores.device.type != "cpu" or height < MIN_FOLD:
        values, indices = add_offsets(scores, offsets).flatten(1).topk(k)
        return values, indices
    width = length // height
    # [b, W, height, width]: column c holds the tokens c, c + width, c + 2 width, ...
    folded = torch.unflatten(scores[..., : height * width], 2, (height, width))
    columns = add_offsets(folded.amax(2), offsets).flatten(1).topk(k).indices
    line_starts, rest = fold_indices(height, width, length, scores.shape[1])
    first = torch.add(columns, columns // width, alpha=length - width)  # row x V + column
    indices = (line_starts + first[:, None]).flatten(1)  # [b, height k]
    if len(rest):
        indices = torch.cat((indices, rest.expand(len(scores), -1)), 1)
    values = scores.flatten(1).gather(1, indices)
    if offsets is not None:
        values += offsets.gather(1, indices // length)
    values, order = values.topk(k)
    return values, indices.gather(1, order)


@cache
def fold_indices(height: int, width: int, length: int, rows: int) -> tuple[Int[Tensor, "height 1"], Int[Tensor, " n"]]:
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
    unfinished = [row for row, ended in enumerate(done) if not ended]
    compiled = isinstance(model, Model | FastDecoder) and model.output.weight.device.type == "cpu"
    size = len(unfinished) + (-len(unfinished) % bucket_size(len(unfinished)) if compiled else 0)
    if size >= len(done):
        return None
    finished = (row for row, ended in enumerate(done) if ended)
    kept = {*unfinished, *islice(finished, size - len(unfinished))}
    # sentences from the end move into the rows of sentences that leave, so that few states are copied
    moved = iter(sorted(row for row in kept if row >= size))
    return [row if row in kept else next(moved) for row in range(size)]


def normalized_score(logprob: float, length: int, length_penalty: float) -> float:
    """Return the score of a hypothesis of `length` tokens, EOS included."""
    return logprob / float(max(length, 1) ** length_penalty)


def raise_nan(lines: Sequence[int]) -> None:
    """Raise NotFiniteError for a batch of lines (0-based) in which the model returned NaN."""
    raise NotFiniteError(
        f"the model outputs NaN in the batch of lines {min(lines) + 1} to {max(lines) + 1}: its "
        "weights are damaged; train again or use another checkpoint"
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
        eos_scores = scores[:, EOS].clone()
        scores[:, EOS] = -math.inf
        # kept if no other token is left
        scores[:, EOS] = eos_scores.masked_fill(scores.amax(1) > -math.inf, -math.inf)


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
    if max_logits := LOGITS_AT_ONCE.get(hidden.device.type):
        groups = max(1, max_logits // (group * model.output.out_features))
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
