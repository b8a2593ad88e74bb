"""Naive-Bayes context extension: merges the next-token distributions of several contexts into one.

log p(T | S1 ... Sn) = (1 + beta) P[log p(T | S)] - beta log p(T) + constant, where P pools the contexts. Each row is
first truncated to its nucleus (top-p), because the tails of a language model are unreliable and -beta log p(T) would
amplify them.

Source: Su 2023, "Naive Bayes-based context extension" and its supplement (kexue.fm 9617, 9632); Su et al. 2024, NAACL.
With one context and top_p = 1 this is context-aware decoding (Shi et al. 2024); with pool "mean" and beta = n - 1 it
is exact naive Bayes; with beta = -1 it is log p(T).
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.errors import UsageError
from attnkit.search import base
from attnkit.text import hint

Pool = Literal["entropy", "mean", "max", "weighted"]
POOLS: tuple[Pool, ...] = get_args(Pool)
FIRST_RANKED = 1024
"""Number of tokens ranked at first; 8 times as many each time that their mass is below `top_p`."""


class MergedDistributions(NamedTuple):
    """Next-token distributions of R hypotheses, each merged from n contexts."""

    logprobs: Float[Tensor, "R V"]
    """Normalized log-probabilities; -inf for truncated tokens."""
    chosen: Int[Tensor, " R"]
    """0-based index of the selected context; -1 if the pool mixes contexts."""
    entropies: Float[Tensor, "R n"]
    """Entropy of each context in nats, over its nucleus and not renormalized."""
    rows: Float[Tensor, "R rows V"]
    """Log-probabilities of each row before truncation."""


class Rule(NamedTuple):
    """Parameters of `merge`."""

    pool: Pool = "entropy"
    beta: float = 0.25
    eta: float = 0.1
    top_p: float = 0.95
    weights: tuple[float, ...] | None = None

    def check(self, contexts: int) -> "Rule":
        """Return the rule itself; raises UsageError if a value is out of range or weights do not fit the contexts."""
        if self.pool not in POOLS:
            raise UsageError(f"unknown pool {self.pool!r}: {hint(self.pool, POOLS)}")
        if contexts < 1:
            raise UsageError("there is no context: give at least one row besides the row without context")
        for name, minimum, maximum in (("beta", -1, math.inf), ("eta", 0, math.inf), ("top_p", 0, 1)):
            value = getattr(self, name)
            if not minimum <= value <= maximum or math.isinf(value):
                bounds = f"at least {minimum}" if math.isinf(maximum) else f"from {minimum} to {maximum}"
                raise UsageError(f"{name} must be {bounds}, got {value:g}")
        weights = self.weights
        if weights is None:
            return self
        if self.pool != "weighted":
            raise UsageError(f"weights are for pool 'weighted', not {self.pool!r}; remove weights")
        if len(weights) != contexts:
            raise UsageError(f"weights: got {len(weights)} for {contexts} contexts; give one weight per context")
        if min(weights) < 0 or not abs(sum(weights) - 1) <= 1e-4:
            raise UsageError("weights must be at least 0 and sum to 1")
        return self


@torch.no_grad()
def merge(
    logits: Float[Tensor, "rows V"],
    pool: Pool = "entropy",
    beta: float = 0.25,
    eta: float = 0.1,
    top_p: float = 0.95,
    previous: int | None = None,
    weights: Sequence[float] | Tensor | None = None,
) -> tuple[Float[Tensor, " V"], int | None]:
    """Merge the next-token logits of n contexts, without gradients; row 0 is the prompt without context.

    Args:
        logits: [n + 1, V]; each row up to an additive constant.
        pool: "entropy" selects the context of minimum entropy, "mean" and "weighted" average log-probabilities, "max"
            takes the maximum over contexts for each token.
        beta: strength with which the distribution without context is divided out; -1 returns that distribution.
        eta: bonus in nats, subtracted from the entropy of the previously selected context.
        top_p: probability mass of the nucleus kept in each row; 1 keeps all tokens, 0 only the likeliest.
        previous: 0-based index of the context selected at the previous step.
        weights: [n], sum 1, for pool "weighted"; default: softmax of the negative entropies.

    Returns:
        Normalized log-probabilities [V] in at least float32, and the 0-based index of the selected context, None if
        the pool mixes contexts.

    Raises:
        UsageError: A value is out of range, there is no context, or a row has NaN or no possible token.
    """
    if logits.dim() != 2:
        raise UsageError(f"logits must have shape [contexts + 1, vocabulary], got {list(logits.shape)}")
    fixed_weights = None if weights is None else tuple(float(weight) for weight in weights)
    rule = Rule(pool, beta, eta, top_p, fixed_weights).check(len(logits) - 1)
    if previous is not None and not 0 <= previous < len(logits) - 1:
        raise UsageError(f"previous must be a context from 0 to {len(logits) - 2}, got {previous}")
    last_chosen = torch.tensor([-1 if previous is None else previous], device=logits.device)
    merged = merge_rows(logits[None], rule, last_chosen)
    if bool(merged.logprobs.isnan().any()):
        raise UsageError("a row of logits has NaN, or only -inf")
    chosen = int(merged.chosen)
    return merged.logprobs[0], None if chosen < 0 else chosen


def merge_rows(logits: Float[Tensor, "R rows V"], rule: Rule, previous: Int[Tensor, " R"]) -> MergedDistributions:
    """Batched `merge` of R hypotheses; `previous` is -1 if no context has been selected. NaN propagates."""
    logprobs = torch.log_softmax(logits.to(base.score_type(logits)), -1)
    kept, entropies = nucleus(logprobs.flatten(0, 1), rule.top_p)
    kept, entropies = kept.view_as(logprobs), entropies.view(logprobs.shape[:2])[:, 1:]
    alone = _truncate(logprobs[:, 0], kept[:, 0])
    chosen = torch.full_like(previous, -1)
    if rule.pool == "entropy":
        again = torch.arange(entropies.shape[1], device=previous.device) == previous[:, None]
        chosen = (entropies - rule.eta * again.to(entropies.dtype)).argmin(1)
        index = torch.arange(len(logprobs), device=previous.device), chosen + 1
        merged = combine(_truncate(logprobs[index], kept[index]), alone, rule.beta)
    elif rule.pool == "max":
        merged = combine(_truncate(logprobs[:, 1:], kept[:, 1:]).amax(1), alone, rule.beta)
    else:
        weights = torch.softmax(-entropies, 1)
        if rule.pool == "mean":
            weights = torch.full_like(entropies, 1 / entropies.shape[1])
        elif rule.weights is not None:
            weights = entropies.new_tensor(rule.weights).expand_as(entropies)
        merged = combine(mixture(logprobs[:, 1:], kept[:, 1:], weights), alone, rule.beta)
        disjoint = (merged == -math.inf).all(-1)  # no token is in the nucleus of every context
        if bool(disjoint.any()):
            union = (kept[:, 1:] & (weights != 0)[:, :, None]).any(1)
            possible = logprobs[:, 1:] != -math.inf
            fallback = combine(mixture(logprobs[:, 1:], possible, weights), logprobs[:, 0], rule.beta)
            merged = torch.where(disjoint[:, None], _truncate(fallback, union), merged)
            # if no token of the union is possible under all contexts, fall back to all tokens
            merged = torch.where((merged == -math.inf).all(-1, keepdim=True), fallback, merged)
    return MergedDistributions(merged.log_softmax(-1), chosen, entropies, logprobs)


def _truncate(logprobs: Float[Tensor, "*rows V"], kept: Bool[Tensor, "*rows V"]) -> Tensor:
    return logprobs.masked_fill(~kept, -math.inf)


def combine(pooled: Float[Tensor, "R V"], alone: Float[Tensor, "R V"], beta: float) -> Float[Tensor, "R V"]:
    """Compute (1 + beta) P - beta log p(T), or P for tokens truncated from p(T)."""
    if beta == -1:
        return alone
    return torch.where(alone == -math.inf, pooled, (1 + beta) * pooled - beta * alone)


def mixture(
    rows: Float[Tensor, "R n V"], kept: Bool[Tensor, "R n V"], weights: Float[Tensor, "R n"]
) -> Float[Tensor, "R V"]:
    """Average log-probabilities over n rows; -inf for tokens not kept in every row with nonzero weight."""
    floor = torch.finfo(rows.dtype).min / 2  # finite, because 0 * -inf in the matrix product is NaN
    finite = torch.where(kept, rows, torch.tensor(floor, dtype=rows.dtype, device=rows.device))
    mean = (weights[:, None] @ finite)[:, 0]
    # a weight above 1e-30 on a token that is not kept pulls the mean below this threshold
    return mean.masked_fill(mean < floor * 1e-30, -math.inf)


def nucleus(logprobs: Float[Tensor, "R V"], top_p: float) -> tuple[Bool[Tensor, "R V"], Float[Tensor, " R"]]:
    """Return a mask of the smallest set of tokens in each row with a mass of at least `top_p`, and its entropy.

    At least one token is kept; ties go to the lower id; tokens of probability 0 are never kept. NaN propagates. The
    entropy is in nats, over the kept tokens and not renormalized.
    """
    size = logprobs.shape[1]
    if top_p >= 1:
        return logprobs != -math.inf, entropy(logprobs.exp(), logprobs)
    count = FIRST_RANKED
    while True:
        values = ranked(logprobs, count)
        count, mass = values.shape[1], values.exp()
        if count == size or not bool((mass.sum(1) < top_p).any()):
            break
        count *= 8
    # a token is kept while all likelier tokens together have less mass than top_p; `begin` is the first kept place
    cumulative = mass.cumsum(1)
    begin = torch.searchsorted(cumulative, cumulative[:, -1:] - top_p, right=True).clamp(0, count - 1)
    smallest = values.gather(1, begin)
    kept = logprobs >= smallest.clamp_min(torch.finfo(smallest.dtype).min)
    kept |= smallest.isnan()
    inside = torch.arange(count, device=values.device) >= begin
    below = values.gather(1, (begin - 1).clamp_min(0))
    tied = torch.where(begin > 0, below == smallest, torch.tensor(count < size, device=begin.device))
    # `>=` kept all tokens tied with the least likely one of the set: drop the surplus, highest ids first
    for row in tied[:, 0].nonzero()[:, 0]:
        num_kept = int((values[row, begin[row] :] == smallest[row]).sum())
        kept[row, (logprobs[row] == smallest[row]).nonzero()[num_kept:, 0]] = False
    return kept, entropy(mass.masked_fill_(~inside, 0), values)


def entropy(mass: Float[Tensor, "R V"], logprobs: Float[Tensor, "R V"]) -> Float[Tensor, " R"]:
    """Compute -sum p log p of each row, with 0 log 0 = 0."""
    # clamped, because 0 * -inf is NaN; p log p is negligible if log p < -100
    negative: Tensor = torch.linalg.vecdot(mass, logprobs.clamp_min(-100))
    return -negative


def ranked(logprobs: Float[Tensor, "R V"], count: int) -> Float[Tensor, "R n"]:
    """Return the `count` highest values of each row, ascending; on CPU by numpy, which is 20 times as fast."""
    size = logprobs.shape[1]
    if logprobs.device.type != "cpu":
        highest: Tensor = logprobs.topk(min(count, size)).values
        return highest.flip(1)
    values = logprobs.numpy().copy()
    first = max(0, size - count)
    if first:
        values.partition(first, axis=1)
    values[:, first:].sort(axis=1)
    return torch.from_numpy(values[:, first:])
