"""Greedy search and sampling.

Sampling is an exponential race (the Gumbel-max trick without its logarithms): each token of the vocabulary gets an
exponential waiting time divided by its probability, and the first to arrive is selected. The times of a draw come from
PCG64 seeded by (seed, line, draw), so they do not depend on the device, the batch or the other lines.
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
"""Number of tokens that top-p sorts first; a row that needs more is sorted completely."""


class WaitingTimes:
    """Exponential waiting times of all tokens of the vocabulary; they depend on (seed, line, draw, step) alone."""

    def __init__(self, seed: int, lines: Sequence[int], draws: int, device: torch.device | str = "cpu") -> None:
        self.device = device
        self.generators = [
            [np.random.Generator(np.random.PCG64((seed, line, draw))) for draw in range(draws)] for line in lines
        ]

    def next(self, active: Sequence[int], size: int) -> Float[Tensor, "R V"]:
        """Return the times of the next step for all draws of the lines `active`; `size` is V."""
        generators = [generator for line in active for generator in self.generators[line]]
        times = np.empty((len(generators), size), np.float32)  # drawn on the CPU, whatever the device
        for row, generator in zip(times, generators, strict=True):
            generator.standard_exponential(out=row, dtype=np.float32)
        return torch.from_numpy(times).to(self.device)


def sample_tokens(scores: Float[Tensor, "R V"], times: Float[Tensor, "R V"], spec: SearchConfig) -> Int[Tensor, " R"]:
    """Sample a token for each row: temperature, then top-k, then top-p, then the exponential race.

    Top-p keeps the smallest set of most probable tokens whose share of the mass after top-k reaches p.
    """
    best, best_token = scores.max(1, keepdim=True)
    # subtract the maximum first: otherwise a tiny temperature makes every quotient infinite
    scaled = (scores - best) / spec.temperature
    if spec.top_k == 0 and spec.top_p == 1:
        token = exponential_race(scaled.exp(), times)
    else:
        values, ids, _ = base.topk(scaled, spec.top_k or NUCLEUS, exact=True)
        total = (values if spec.top_k else scaled).exp().sum(1)  # [R], the mass after top-k
        token, short = sample_nucleus(values, ids, total, times, spec.top_p)
        rows = short.nonzero().squeeze(1)
        if not spec.top_k and len(rows) and scaled.shape[1] > NUCLEUS:
            values, ids = scaled[rows].sort(dim=1, descending=True, stable=True)
            token[rows] = sample_nucleus(values, ids, total[rows], times[rows], spec.top_p)[0]
    # a row with NaN selects the NaN, so that the caller finds it in the score of the token
    return torch.where(best.isnan(), best_token, token[:, None]).squeeze(1)


def sample_nucleus(
    values: Float[Tensor, "R k"],
    ids: Int[Tensor, "R k"],
    total: Float[Tensor, " R"],
    times: Float[Tensor, "R V"],
    share: float,
) -> tuple[Int[Tensor, " R"], Bool[Tensor, " R"]]:
    """Sample from sorted tokens up to a mass of `share` of the total; also return which rows do not reach it."""
    weights = values.exp()
    mass, needed = weights.cumsum(1), share * total[:, None]
    inside = mass - weights < needed  # a token stays if the mass before it is less than `needed`
    index = exponential_race(weights * inside, times.gather(1, ids))
    return ids.gather(1, index[:, None]).squeeze(1), mass[:, -1] < needed[:, 0]


def exponential_race(weights: Float[Tensor, "R k"], times: Float[Tensor, "R k"]) -> Int[Tensor, " R"]:
    """Return the index of the minimum of time / weight in each row.

    Each index is drawn with a probability proportional to its weight. Unlike in the inverse of a cumulative sum, a
    rounding error in thousands of weights changes the result only if two quotients are almost equal, so a batch of
    another size draws the same tokens.
    """
    # a time of zero would win whatever its weight
    return (weights / times.clamp_min(1e-30).to(weights.dtype)).argmax(1)


class BatchOutputs:
    """Outputs of a batch of sentences so far, D per sentence."""

    def __init__(self, sentences: int, draws: int, like: Tensor) -> None:
        shape, device = (sentences, draws), like.device
        self.steps: list[tuple[Int[Tensor, " b"], Int[Tensor, "b D"]]] = []
        """For each step the sentences in the batch, and the tokens of their outputs; PAD after the end."""
        self.logprob = like.new_zeros(shape)
        self.length = torch.zeros(shape, dtype=torch.long, device=device)
        self.complete = torch.zeros(shape, dtype=torch.bool, device=device)

    def append(
        self,
        active: Int[Tensor, " b"],
        token: Int[Tensor, "b D"],
        value: Float[Tensor, "b D"],
        alive: Bool[Tensor, "b D"],
    ) -> Bool[Tensor, "b D"]:
        """Append the tokens of one step to the outputs `alive`, and return which outputs continue.

        A log-probability of -inf ends the output without a token: the constraints left none.
        """
        valid = alive & (value > -math.inf)
        ends = valid & (token == EOS)
        alive = valid & ~ends
        # no index is needed if all sentences are active, in order
        rows = slice(None) if len(active) == len(self.length) else active
        self.steps.append((active, token.where(alive, PAD)))
        self.logprob[rows] += value.where(valid, 0)
        self.length[rows] += valid
        self.complete[rows] |= ends
        return alive

    def hypotheses(self, length_penalty: float) -> list[list[Hypothesis]]:
        """Return the outputs of each sentence, best first; equal scores in the order of the draws."""
        table = torch.full((len(self.steps), *self.length.shape), PAD, device=self.length.device)
        for step, (active, token) in enumerate(self.steps):
            table[step, active] = token
        ids = table.permute(1, 2, 0).cpu().numpy()  # [B, D, steps]
        complete, logprob = self.complete.tolist(), self.logprob.tolist()
        answers = []
        for row, lengths in enumerate(self.length.tolist()):
            hypotheses = [
                Hypothesis(
                    ids[row, n, : length - complete[row][n]].tolist(),
                    base.normalized_score(logprob[row][n], length, length_penalty),
                    logprob[row][n],
                    complete[row][n],
                )
                for n, length in enumerate(lengths)
            ]
            answers.append(sorted(hypotheses, key=lambda hypothesis: -hypothesis.score))
        return answers


def next_tokens(
    model: base.Predictor,
    hidden: Float[Tensor, "R W"],
    spec: SearchConfig,
    produced: int,
    prefix: Int[Tensor, "R t"] | None,
    times: Float[Tensor, "R V"] | None,
) -> tuple[Float[Tensor, "R 1"], Int[Tensor, "R 1"]]:
    """Return the log-probability and the id of each row's next token: sampled with `times`, otherwise the best."""
    parts = []
    for rows, scores in base.next_scores(model, hidden, spec, produced, prefix):
        if times is None:
            value, token = base.row_max(scores)
        else:
            token = sample_tokens(scores, times[rows], spec)[:, None]
            value = scores.gather(1, token)
        parts.append((value, token))
    values, tokens = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(tokens)


def greedy_or_sample(
    model: base.Predictor,
    state: Any,
    ids: Int[Tensor, "B 1"],
    spec: SearchConfig,
    max_length: int,
    lines: Sequence[int],
) -> list[list[Hypothesis]]:
    """Return one greedy output per sentence, or n_best independent samples, best first.

    Arguments and errors as `beam_search`; `lines` also seed the samples.
    """
    draws, device = spec.n_best, ids.device
    hidden, state = base.advance(model, ids, state)
    outputs = BatchOutputs(len(ids), draws, hidden.new_empty(0, dtype=base.score_type(hidden)))
    prefix = ids[:, :0].repeat_interleave(draws, 0) if spec.no_repeat_ngram else None
    active = torch.arange(len(ids), device=device)
    alive = torch.ones((len(ids), draws), dtype=torch.bool, device=device)
    waiting_times = WaitingTimes(spec.seed, lines, draws, device) if spec.method == "sample" else None
    if draws > 1:
        rows = active.repeat_interleave(draws)
        hidden, state = hidden.index_select(0, rows), state.select(rows, None)
    for step in range(max_length):
        times = None
        if waiting_times is not None:
            times = waiting_times.next(active.tolist(), model.output.out_features)
        value, token = next_tokens(model, hidden, spec, step, prefix, times)
        token = token.view(alive.shape)
        alive = outputs.append(active, token, value.view(alive.shape), alive)
        nan, *done = torch.cat((value.isnan().any()[None], ~alive.any(1))).tolist()
        if nan:
            base.raise_nan(lines)
        if all(done) or step + 1 == max_length:
            break
        if any(done) and (kept := base.compact_batch(model, done)):
            kept_rows = torch.tensor(kept, device=device)
            rows = (kept_rows[:, None] * draws + torch.arange(draws, device=device)).flatten()
            state = state.select(rows, kept_rows)
            active, alive, token = (x.index_select(0, kept_rows) for x in (active, alive, token))
            prefix = None if prefix is None else prefix.index_select(0, rows)
        ids = token.reshape(-1, 1)
        prefix = None if prefix is None else torch.cat((prefix, ids), 1)
        hidden, state = base.advance(model, ids, state)
    return outputs.hypotheses(spec.length_penalty)
