"""One token at a time: greedy search and sampling.

Sampling turns one uniform number a token into a token by the inverse of the cumulative
distribution.  The numbers of a draw come from PCG64 seeded by (seed, line, draw), so they depend on
nothing else: not on the device, the batch, or the other lines.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.models.base import Decode, Model
from attnkit.recipe.schema import Search
from attnkit.search import base
from attnkit.search.base import Hypothesis
from attnkit.search.constraints import constrain
from attnkit.tokens import EOS, PAD

NUCLEUS = 64
"""Tokens ranked at first when top-p needs an order; rows that need more are sorted whole."""


class Numbers:
    """Numbers in [0, 1) for every step of every draw, made some steps at a time.

    They have 24 bits, which float32 holds exactly, and depend on (seed, line, draw, step) alone.
    """

    def __init__(
        self, seed: int, lines: Sequence[int], draws: int, device: torch.device | str = "cpu"
    ) -> None:
        self.shape, self.device = (len(lines), draws, base.GROWTH), device
        self.generators = [
            np.random.Generator(np.random.PCG64((seed, line, draw)))
            for line in lines
            for draw in range(draws)
        ]

    def at(self, step: int, home: Int[Tensor, " b"]) -> Float[Tensor, "b D"]:
        """Those of a step (0-based; to be asked for in order) for some of the lines."""
        if step % base.GROWTH == 0:
            rows = [generator.random(base.GROWTH, np.float32) for generator in self.generators]
            self.block = torch.from_numpy(np.stack(rows).reshape(self.shape)).to(self.device)
        return self.block[home, :, step % base.GROWTH]


def draw(
    scores: Float[Tensor, "R V"], numbers: Float[Tensor, " R"], spec: Search
) -> Int[Tensor, " R"]:
    """A token for each row: temperature, then top-k, then top-p, then the draw.

    Top-p keeps the smallest set of likeliest tokens whose share of what top-k left reaches p.
    """
    # the maximum goes first: a tiny temperature would make every quotient infinite
    scaled = (scores - scores.amax(1, keepdim=True)) / spec.temperature
    if spec.top_k == 0 and spec.top_p == 1:
        return invert(scaled.exp().cumsum(1), numbers)
    if spec.top_k:
        values, ids, _ = base.top(scaled, spec.top_k, exact=True)
        return nucleus(values, ids, values.exp().sum(1), numbers, spec.top_p)[0]
    total = scaled.exp().sum(1)
    token, short = nucleus(*base.top(scaled, NUCLEUS, exact=True)[:2], total, numbers, spec.top_p)
    rows = short.nonzero().squeeze(1)
    if len(rows) and scaled.shape[1] > NUCLEUS:
        ordered, ids = scaled[rows].sort(dim=1, descending=True, stable=True)
        token[rows] = nucleus(ordered, ids, total[rows], numbers[rows], spec.top_p)[0]
    return token


def nucleus(
    values: Float[Tensor, "R k"],
    ids: Int[Tensor, "R k"],
    total: Float[Tensor, " R"],
    numbers: Float[Tensor, " R"],
    share: float,
) -> tuple[Int[Tensor, " R"], Bool[Tensor, " R"]]:
    """Draw from ranked tokens cut where their mass reaches `share` of the total.

    The second answer says which rows do not reach it with the k tokens that they are given.
    """
    weights = values.exp()
    reached = weights.cumsum(1)
    wanted = share * total[:, None]
    kept = reached - weights < wanted
    place = invert((weights * kept).cumsum(1), numbers)
    return ids.gather(1, place[:, None]).squeeze(1), reached[:, -1] < wanted[:, 0]


def invert(cumulative: Float[Tensor, "R k"], numbers: Float[Tensor, " R"]) -> Int[Tensor, " R"]:
    """The first place whose cumulative mass exceeds the number's share of the whole mass."""
    goal = (numbers * cumulative[:, -1])[:, None]
    place = torch.searchsorted(cumulative, goal, right=True).squeeze(1)
    # NaN sorts behind everything; the caller finds it in the score of the last token
    return place.clamp_max(cumulative.shape[1] - 1)


class Draws:
    """What the sentences of a batch have so far, D outputs each."""

    def __init__(self, sentences: int, draws: int, longest: int, like: Tensor) -> None:
        shape, device = (sentences, draws), like.device
        room = min(longest, base.GROWTH)
        self.ids = torch.full((*shape, room), PAD, dtype=torch.long, device=device)
        self.logprob = like.new_zeros(shape)
        self.length = torch.zeros(shape, dtype=torch.long, device=device)
        self.complete = torch.zeros(shape, dtype=torch.bool, device=device)

    def write(
        self,
        step: int,
        home: Int[Tensor, " b"],
        token: Int[Tensor, "b D"],
        value: Float[Tensor, "b D"],
        alive: Bool[Tensor, "b D"],
    ) -> Bool[Tensor, "b D"]:
        """Add the tokens of one step (0-based) to the outputs still `alive`; which still are.

        A token whose log-probability is -inf is none: nothing was left to choose.
        """
        if step == self.ids.shape[2]:
            self.ids = torch.cat((self.ids, torch.full_like(self.ids, PAD)), 2)
        chosen = alive & (value > -math.inf)
        ends = chosen & (token == EOS)
        self.ids[home, :, step] = token.masked_fill(ends | ~chosen, PAD)
        self.logprob[home] += value.masked_fill(~chosen, 0)
        self.length[home] += chosen
        self.complete[home] |= ends
        return chosen & ~ends

    def hypotheses(self, length_penalty: float) -> list[list[Hypothesis]]:
        """Each sentence's outputs, best first; equal ones in the order of the draws."""
        ids, length = self.ids.cpu().numpy(), self.length.tolist()
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


def step_by_step(
    model: Model,
    state: Decode,
    ids: Int[Tensor, "B 1"],
    spec: Search,
    longest: int,
    lines: Sequence[int],
) -> list[list[Hypothesis]]:
    """Greedy search (one output a sentence), or n_best independent draws, best first.

    Arguments and errors as `beam_search`; `lines` also seed the draws.
    """
    draws, device = spec.n_best, ids.device
    scores, state = base.predict(model, ids, state)
    record = Draws(len(ids), draws, longest, scores)
    home = torch.arange(len(ids), device=device)
    alive = torch.ones((len(ids), draws), dtype=torch.bool, device=device)
    sampling = spec.method == "sample"
    numbers = Numbers(spec.seed, lines, draws, device) if sampling else None
    if draws > 1:
        rows = home.repeat_interleave(draws)
        scores, state = scores.index_select(0, rows), base.select(state, rows, None)
    for step in range(longest):
        prefix = record.ids[home, :, :step].flatten(0, 1) if spec.no_repeat_ngram else None
        constrain(scores, spec, step, prefix)
        token = choose(scores, numbers.at(step, home) if numbers else None, spec)
        value = scores.gather(1, token[:, None])
        token = token.view(alive.shape)
        alive = record.write(step, home, token, value.view(alive.shape), alive)
        nan, *live = torch.cat((value.isnan().any()[None], alive.any(1))).tolist()
        if nan:
            base.refuse_nan(lines)
        if not any(live) or step + 1 == longest:
            break
        if not all(live):
            stay = torch.tensor([i for i, lives in enumerate(live) if lives], device=device)
            rows = (stay[:, None] * draws + torch.arange(draws, device=device)).flatten()
            state = base.select(state, rows, stay)
            home, alive, token = (x.index_select(0, stay) for x in (home, alive, token))
        scores, state = base.predict(model, token.reshape(-1, 1), state)
    return record.hypotheses(spec.length_penalty)


def choose(
    scores: Float[Tensor, "R V"], numbers: Float[Tensor, "b D"] | None, spec: Search
) -> Int[Tensor, " R"]:
    """The likeliest token of each row (equal ones: the lowest id), or one drawn with `numbers`."""
    return scores.argmax(1) if numbers is None else draw(scores, numbers.flatten(), spec)
