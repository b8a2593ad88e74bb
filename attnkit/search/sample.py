"""One token at a time: greedy search and sampling.

Sampling is an exponential race (the Gumbel-max trick without its logarithms): each token of the vocabulary gets a
waiting time, and the first to arrive wins. The times of a draw come from PCG64 seeded by (seed, line, draw), so they
depend on nothing else: not on the device, the batch, or the other lines.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.data.tokenizer import EOS, PAD
from attnkit.recipe.schema import SearchConfig
from attnkit.search import base
from attnkit.search.base import Hypothesis

NUCLEUS = 64
"""Tokens ranked at first when top-p needs an order; rows that need more are sorted whole."""


class WaitingTimes:
    """Exponential waiting times, one a token of the vocabulary, for every step of every draw.

    They depend on (seed, line, draw, step) alone.
    """

    def __init__(self, seed: int, lines: Sequence[int], draws: int, device: torch.device | str = "cpu") -> None:
        self.device = device
        self.generators = [
            [np.random.Generator(np.random.PCG64((seed, line, draw))) for draw in range(draws)] for line in lines
        ]

    def next(self, active: Sequence[int], size: int) -> Float[Tensor, "R V"]:
        """The times of the next step, for all draws of some lines; V is `size`."""
        drawn = [one for line in active for one in self.generators[line]]
        times = np.empty((len(drawn), size), np.float32)  # drawn on the CPU, whatever the device
        for row, generator in zip(times, drawn, strict=True):
            generator.standard_exponential(out=row, dtype=np.float32)
        return torch.from_numpy(times).to(self.device)


def sample_tokens(scores: Float[Tensor, "R V"], times: Float[Tensor, "R V"], spec: SearchConfig) -> Int[Tensor, " R"]:
    """A token for each row: temperature, then top-k, then top-p, then the exponential race.

    Top-p keeps the smallest set of likeliest tokens whose share of what top-k left reaches p.
    """
    best, place = scores.max(1, keepdim=True)
    # the maximum goes first: a tiny temperature would make every quotient infinite
    scaled = (scores - best) / spec.temperature
    if spec.top_k == 0 and spec.top_p == 1:
        token = exponential_race(scaled.exp(), times)
    else:
        values, ids, _ = base.top(scaled, spec.top_k or NUCLEUS, exact=True)
        total = (values if spec.top_k else scaled).exp().sum(1)  # [R], what top-p takes a share of
        token, short = sample_nucleus(values, ids, total, times, spec.top_p)  # short of mass
        rows = short.nonzero().squeeze(1)
        if not spec.top_k and len(rows) and scaled.shape[1] > NUCLEUS:
            ordered, ids = scaled[rows].sort(dim=1, descending=True, stable=True)
            token[rows] = sample_nucleus(ordered, ids, total[rows], times[rows], spec.top_p)[0]
    # the caller finds NaN in the score of the token
    return torch.where(best.isnan(), place, token[:, None]).squeeze(1)


def sample_nucleus(
    values: Float[Tensor, "R k"],
    ids: Int[Tensor, "R k"],
    total: Float[Tensor, " R"],
    times: Float[Tensor, "R V"],
    share: float,
) -> tuple[Int[Tensor, " R"], Bool[Tensor, " R"]]:
    """Draw from ranked tokens cut where their mass reaches `share` of the total.

    Also returns which rows do not reach it with their k tokens.
    """
    weights = values.exp()
    reached = weights.cumsum(1)  # a token stays while those before it have less than `needed`
    needed = share * total[:, None]
    inside = reached - weights < needed
    place = exponential_race(weights * inside, times.gather(1, ids))
    return ids.gather(1, place[:, None]).squeeze(1), reached[:, -1] < needed[:, 0]


def exponential_race(weights: Float[Tensor, "R k"], times: Float[Tensor, "R k"]) -> Int[Tensor, " R"]:
    """The first to arrive when each waits its time divided by its weight.

    Each one wins with a probability proportional to its weight.  Unlike the inverse of a
    cumulative sum, a rounding error in thousands of weights changes the winner only where two
    arrive together, so a batch of another size draws the same tokens.
    """
    # a time of zero would win whatever its weight
    return (weights / times.clamp_min(1e-30).to(weights.dtype)).argmax(1)


class BatchOutputs:
    """The tokens that a batch of sentences has so far, D outputs each."""

    def __init__(self, sentences: int, draws: int, like: Tensor) -> None:
        shape, device = (sentences, draws), like.device
        self.steps: list[tuple[Int[Tensor, " b"], Int[Tensor, "b D"]]] = []
        """Sentences of the batch, and the tokens of their outputs; PAD of those that ended."""
        self.logprob = like.new_zeros(shape)
        self.length = torch.zeros(shape, dtype=torch.long, device=device)
        self.complete = torch.zeros(shape, dtype=torch.bool, device=device)

    def write(
        self,
        active: Int[Tensor, " b"],
        token: Int[Tensor, "b D"],
        value: Float[Tensor, "b D"],
        alive: Bool[Tensor, "b D"],
    ) -> Bool[Tensor, "b D"]:
        """Add the tokens of one step to the outputs still `alive`; which still are.

        A token whose log-probability is -inf is none: nothing was left to choose.
        """
        chosen = alive & (value > -math.inf)
        ends = chosen & (token == EOS)
        going = chosen & ~ends
        # without an index where all are there, in order
        rows = slice(None) if len(active) == len(self.length) else active
        self.steps.append((active, token.where(going, PAD)))
        self.logprob[rows] += value.where(chosen, 0)
        self.length[rows] += chosen
        self.complete[rows] |= ends
        return going

    def hypotheses(self, length_penalty: float) -> list[list[Hypothesis]]:
        """Each sentence's outputs, best first; equal ones in the order of the draws."""
        table = torch.full((len(self.steps), *self.length.shape), PAD, device=self.length.device)
        for step, (active, token) in enumerate(self.steps):
            table[step, active] = token
        ids, length = table.permute(1, 2, 0).cpu().numpy(), self.length.tolist()  # [B, D, steps]
        complete, logprob = self.complete.tolist(), self.logprob.tolist()
        answers = []
        for row, lengths in enumerate(length):
            found = [
                Hypothesis(
                    ids[row, n, : size - complete[row][n]].tolist(),
                    base.normalised(logprob[row][n], size, length_penalty),
                    logprob[row][n],
                    complete[row][n],
                )
                for n, size in enumerate(lengths)
            ]
            answers.append(sorted(found, key=lambda hypothesis: -hypothesis.score))
        return answers


def next_tokens(
    model: base.Predictor,
    hidden: Float[Tensor, "R W"],
    spec: SearchConfig,
    produced: int,
    prefix: Int[Tensor, "R t"] | None,
    times: Float[Tensor, "R V"] | None,
) -> tuple[Float[Tensor, "R 1"], Int[Tensor, "R 1"]]:
    """The next token of each row with its log-probability: the likeliest one, or one drawn."""
    parts = []
    for rows, scores in base.next_scores(model, hidden, spec, produced, prefix):
        if times is None:
            value, token = base.best(scores)
        else:
            token = sample_tokens(scores, times[rows], spec)[:, None]
            value = scores.gather(1, token)
        parts.append((value, token))
    values, tokens = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(tokens)


def step_by_step(
    model: base.Predictor, state: Any, ids: Int[Tensor, "B 1"], spec: SearchConfig, longest: int, lines: Sequence[int]
) -> list[list[Hypothesis]]:
    """Greedy search (one output a sentence), or n_best independent draws, best first.

    Arguments and errors as `beam_search`; `lines` also seed the draws.
    """
    draws, device = spec.n_best, ids.device
    hidden, state = base.advance(model, ids, state)
    outputs = BatchOutputs(len(ids), draws, hidden.new_empty(0, dtype=base.score_type(hidden)))
    prefix = ids[:, :0].repeat_interleave(draws, 0) if spec.no_repeat_ngram else None
    active = torch.arange(len(ids), device=device)
    alive = torch.ones((len(ids), draws), dtype=torch.bool, device=device)
    sampling = spec.method == "sample"
    waiting_times = WaitingTimes(spec.seed, lines, draws, device) if sampling else None
    if draws > 1:
        rows = active.repeat_interleave(draws)
        hidden, state = hidden.index_select(0, rows), state.select(rows, None)
    for step in range(longest):
        times = None
        if waiting_times is not None:
            times = waiting_times.next(active.tolist(), model.output.out_features)
        value, token = next_tokens(model, hidden, spec, step, prefix, times)
        token = token.view(alive.shape)
        alive = outputs.write(active, token, value.view(alive.shape), alive)
        nan, *live = torch.cat((value.isnan().any()[None], alive.any(1))).tolist()
        if nan:
            base.refuse_nan(lines)
        if not any(live) or step + 1 == longest:
            break
        if not all(live) and (kept := base.compact_batch(model, [not lives for lives in live])):
            stay = torch.tensor(kept, device=device)
            rows = (stay[:, None] * draws + torch.arange(draws, device=device)).flatten()
            state = state.select(rows, stay)
            active, alive, token = (x.index_select(0, stay) for x in (active, alive, token))
            prefix = None if prefix is None else prefix.index_select(0, rows)
        ids = token.reshape(-1, 1)
        prefix = None if prefix is None else torch.cat((prefix, ids), 1)
        hidden, state = base.advance(model, ids, state)
    return outputs.hypotheses(spec.length_penalty)
