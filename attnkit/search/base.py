"""What every search shares: its answer, what it asks of a model, and the arithmetic of a step."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.attention import reorder
from attnkit.errors import DataError
from attnkit.models.base import Decode, Model

GROWTH = 64
"""Steps for which a search makes room at first; more room comes when it is needed."""


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


def steps(model: Model, source: Int[Tensor, "B S"], max_length: int) -> int:
    """The most tokens that a sentence may get: max_length, or what the model's positions allow.

    Raises:
        DataError: no position is left after the source of a decoder-only model.
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


def predict(
    model: Model, ids: Int[Tensor, "R 1"], state: Decode
) -> tuple[Float[Tensor, "R V"], Decode]:
    """Log-probabilities of the next token, in a fresh tensor, and the new state."""
    logits, state = model.step(ids, state, last=True)
    logits = logits[:, -1]
    # sums over many tokens in half precision would lose the order of close hypotheses
    wide = logits.float() if logits.element_size() < 4 else logits
    return wide.log_softmax(-1), state


def select(state: Decode, rows: Int[Tensor, " R"], stay: Int[Tensor, " b"] | None) -> Decode:
    """Hypotheses take the places of `rows`; only the sentences in `stay` remain (None: all).

    Memory has one row a sentence whatever the beam, so it moves only when a sentence leaves.
    """
    fixed = state.fixed if stay is None else reorder(state.fixed, stay)
    return Decode(reorder(state.moving, rows), fixed)


def top(
    scores: Float[Tensor, "R V"], k: int, exact: bool
) -> tuple[Float[Tensor, "R k"], Int[Tensor, "R k"], Bool[Tensor, ""]]:
    """The k highest of each row in order, equal ones by lowest id: (scores, ids, any ties).

    Without `exact` the choice among equal scores is the device's.  A caller that then learns that
    there were ties asks again, which spares a second wait for the device in every other step.
    """
    values, ids = scores.topk(min(k + 1, scores.shape[1]))
    same = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -math.inf)
    if exact:
        rows = same.any(1).nonzero().squeeze(1)
        ordered, order = scores[rows].sort(dim=1, descending=True, stable=True)
        values[rows], ids[rows] = ordered[:, : k + 1], order[:, : k + 1]
    return values[:, :k], ids[:, :k], same.any()


def normalised(logprob: float, length: int, length_penalty: float) -> float:
    """Score of a hypothesis of `length` tokens, EOS included."""
    return logprob / float(max(length, 1) ** length_penalty)


def refuse_nan(lines: Sequence[int]) -> None:
    """Raise DataError: the model answered NaN in the batch of these lines (0-based)."""
    raise DataError(
        f"the model answers NaN in the batch of lines {min(lines) + 1} to {max(lines) + 1}: "
        "its weights are damaged; train again or use another checkpoint"
    )
