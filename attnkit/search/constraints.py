"""Tokens that a search may not choose.

The order of all processing is fixed: log-softmax of the model's logits; the bans below; and, when
sampling, temperature, top-k, top-p (`attnkit.search.sample`).  Bans do not renormalise: scores stay
the model's own log-probabilities.
"""

import math

from jaxtyping import Float, Int
from torch import Tensor

from attnkit.data.tokenizer import BOS, EOS, PAD, UNK
from attnkit.recipe.schema import SearchConfig


def constrain(
    scores: Float[Tensor, "R V"],
    spec: SearchConfig,
    produced: int,
    prefix: Int[Tensor, "R t"] | None,
) -> None:
    """Ban tokens in place, by setting them to -inf.

    PAD, BOS and UNK are never produced: they stand for no text.  Where no_repeat_ngram is n > 0,
    neither is a token that would complete an n-gram that the `prefix` already has (nothing else
    needs the prefix).  EOS is banned before min_length tokens are `produced`, unless nothing else
    is left.
    """
    for token in (PAD, UNK, BOS):
        scores[:, token] = -math.inf
    if spec.no_repeat_ngram and prefix is not None and prefix.shape[1] >= spec.no_repeat_ngram:
        ban_repeats(scores, prefix, spec.no_repeat_ngram)
    if produced < spec.min_length:
        end = scores[:, EOS].clone()
        scores[:, EOS] = -math.inf
        scores[:, EOS] = end.masked_fill(scores.amax(1) > -math.inf, -math.inf)


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
