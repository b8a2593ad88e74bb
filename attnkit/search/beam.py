"""Beam search over a model's start and step.

At each step every sentence has up to 2K candidates (K beams). The K best that do not end live on; those that end among
the first K are finished. 2K, because at most K candidates can end, so finished ones never starve the beam.

A sentence stops when K of its hypotheses have finished, or when no live one can still enter its n-best list. The
latter is exact: a log-probability L only falls, so a hypothesis that ends with n tokens scores at most L / n **
length_penalty, which is largest at the longest n for a positive penalty and at the shortest for a negative one.
Hypotheses that reach the last step without EOS fill the places that finished ones leave empty.

The chosen tokens form a trellis of (token, parent beam): nothing is copied when beams
swap, and sentences that leave keep their column.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from attnkit.data.tokenizer import EOS
from attnkit.recipe.schema import SearchConfig
from attnkit.search import base
from attnkit.search.base import Hypothesis


class FinishedHypotheses(NamedTuple):
    """The n best finished hypotheses of each sentence, best first; -inf where there is none."""

    score: Float[Tensor, "b N"]
    logprob: Float[Tensor, "b N"]
    length: Int[Tensor, "b N"]
    """Tokens, EOS included."""
    beam: Int[Tensor, "b N"]
    """The beam, one step before the end, that it continues."""
    ended: Int[Tensor, " b"]
    """How many have finished, also those that are not among the n best."""

    @classmethod
    def none(cls, sentences: int, places: int, like: Tensor) -> Self:
        """No sentence has finished anything."""
        score, logprob = like.new_full((2, sentences, places), -math.inf)
        length, beam = torch.zeros((2, sentences, places), dtype=torch.long, device=like.device)
        return cls(score, logprob, length, beam, length.new_zeros(sentences))

    def add(
        self,
        ends: Bool[Tensor, "b K"],
        logprob: Float[Tensor, "b K"],
        beam: Int[Tensor, "b K"],
        length: int,
        length_penalty: float,
    ) -> Self:
        """With the candidates that end now; earlier ones go first among equal scores."""
        fresh = (logprob / length**length_penalty).masked_fill(~ends, -math.inf)
        places = self.score.shape[1]
        score, order = torch.cat((self.score, fresh), 1).sort(dim=1, descending=True, stable=True)
        order = order[:, :places]
        lengths = torch.full_like(beam, length)
        return type(self)(
            score[:, :places],
            torch.cat((self.logprob, logprob), 1).gather(1, order),
            torch.cat((self.length, lengths), 1).gather(1, order),
            torch.cat((self.beam, beam), 1).gather(1, order),
            self.ended + ends.sum(1),
        )

    def take(self, stay: Int[Tensor, " n"]) -> Self:
        """The sentences that stay."""
        return type(self)(*(field.index_select(0, stay) for field in self))


class Trellis:
    """Live hypotheses of a batch as a trellis of tokens and parents, and the finished ones."""

    def __init__(self, sentences: int, spec: SearchConfig, longest: int, like: Tensor) -> None:
        self.spec, self.longest = spec, longest
        self.steps: list[tuple[Int[Tensor, " b"], Int[Tensor, "b K"]]] = []
        """Sentences of the batch, and the places of their hypotheses (see `candidates`)."""
        self.finished = FinishedHypotheses.none(sentences, spec.n_best, like)
        self.live = like.new_full((sentences, spec.beam), -math.inf)

    def close(self, active: Int[Tensor, " b"], finished: FinishedHypotheses, live: Float[Tensor, "b K"]) -> None:
        """Keep what these sentences have found so far."""
        for whole, part in zip((*self.finished, self.live), (*finished, live), strict=True):
            whole[active] = part

    def hypotheses(self, size: int) -> list[list[Hypothesis]]:
        """Each sentence's n best: the finished ones, then those still live, both best first.

        `size` is that of the vocabulary.
        """
        done, places = self.finished, self.spec.n_best
        beams = torch.arange(self.spec.beam, device=self.live.device).expand_as(self.live)
        cut = self.longest * (self.live > -math.inf).long()  # lengths of those without EOS
        length = torch.cat(((done.length - 1).clamp_min(0), cut), 1).tolist()  # without EOS
        # tokens from the beam of the last one back to the first
        shape = (len(self.steps), *self.live.shape)
        places_of = torch.zeros(shape, dtype=torch.long, device=self.live.device)
        for step, (active, place) in enumerate(self.steps):
            places_of[step, active] = place
        parents, token_table = np.divmod(places_of.cpu().numpy(), size)  # [steps, B, K]
        lengths, at = np.asarray(length), torch.cat((done.beam, beams), 1).cpu().numpy()  # [B, n]
        sentence = np.arange(len(at))[:, None]
        ids = np.zeros((*at.shape, int(lengths.max(initial=0))), np.int64)  # [B, n, longest]
        for step in reversed(range(ids.shape[2])):
            inside = step < lengths
            ids[..., step] = np.where(inside, token_table[step, sentence, at], 0)
            at = np.where(inside, parents[step, sentence, at], at)
        cut_score = self.live / self.longest**self.spec.length_penalty
        score = torch.cat((done.score, cut_score), 1).tolist()
        logprob = torch.cat((done.logprob, self.live), 1).tolist()
        answers = []
        for row, values in enumerate(score):
            best = [n for n, value in enumerate(values) if value > -math.inf][:places]
            found = {n: ids[row, n, : length[row][n]].tolist() for n in best}
            answers.append([Hypothesis(found[n], values[n], logprob[row][n], n < places) for n in best])
        return answers


def candidates(
    model: base.Predictor,
    hidden: Float[Tensor, "R H"],
    live: Float[Tensor, "b W"],
    spec: SearchConfig,
    produced: int,
    prefix: Int[Tensor, "R t"] | None,
    exact: bool,
) -> tuple[Float[Tensor, "b k"], Int[Tensor, "b k"], Bool[Tensor, ""]]:
    """The best continuations of b sentences, each with W hypotheses: twice as many as beams.

    Their log-probabilities; their places (the beam that each continues, times the size of the
    vocabulary, plus its token); whether some are equal and their choice is not exact.  On a CPU,
    which costs no wait, the choice among equal scores is always exact.
    """
    exact = exact or hidden.device.type == "cpu"
    width, beams, parts = 2 * spec.beam, live.shape[1], []
    for rows, scores in base.next_scores(model, hidden, spec, produced, prefix, beams):
        parts.append(base.top(scores, width, exact, live.reshape(-1)[rows].view(-1, beams)))
    logprobs, places, ties = zip(*parts, strict=True)
    (logprob, place), tied = parts[0][:2], ties[0]
    if len(parts) > 1:
        logprob, place, tied = torch.cat(logprobs), torch.cat(places), torch.stack(ties).any()
    if logprob.shape[1] < width:  # a vocabulary smaller than the candidate list
        spare = (0, width - logprob.shape[1])
        logprob, place = F.pad(logprob, spare, value=-math.inf), F.pad(place, spare, value=EOS)
    return logprob, place, tied


def decide(
    best: tuple[Tensor, Tensor, Tensor],
    size: int,
    finished: FinishedHypotheses,
    length: int,
    longest: int,
    spec: SearchConfig,
) -> tuple[Float[Tensor, "b K"], Int[Tensor, "b K"], FinishedHypotheses, Bool[Tensor, " n"]]:
    """Sort the best `candidates` of token `length` (of at most `longest`) into live and finished.

    Returns the live hypotheses, their places, the finished ones, and a status for the host:
    whether there were ties, whether there is a NaN, and which sentences are done (left out where
    none is).  `size` is V.  The arguments stay unchanged.
    """
    beams, (logprob, place, tied) = spec.beam, best
    stops = place % size == EOS
    if nothing_ends(stops, logprob, finished):
        status = torch.stack((tied, torch.zeros_like(tied)))  # nothing here is NaN
        return logprob[:, :beams], place[:, :beams], finished, status
    ends = (stops & (logprob > -math.inf))[:, :beams]
    finished = finished.add(ends, logprob[:, :beams], place[:, :beams] // size, length, spec.length_penalty)
    # a stable sort of the flags brings the unfinished candidates to the front, in order
    going = stops.to(torch.uint8).argsort(dim=1, stable=True)[:, :beams]
    live = logprob.gather(1, going).masked_fill(stops.gather(1, going), -math.inf)
    # no live hypothesis can score more, since log-probabilities only fall
    bound = live[:, 0] / (longest if spec.length_penalty > 0 else length + 1) ** spec.length_penalty
    done = (finished.ended >= beams) | (finished.score[:, -1] >= bound)
    status = torch.cat((torch.stack((tied, live.isnan().any())), done))
    live = live.masked_fill(done[:, None], -math.inf)  # nothing more enters their n-best lists
    return live, place.gather(1, going), finished, status


def nothing_ends(stops: Bool[Tensor, "b k"], logprob: Float[Tensor, "b k"], finished: FinishedHypotheses) -> bool:
    """Whether nothing ends or has ended, all sentences have candidates, and none is NaN.

    False where the answer would mean waiting for a device.
    """
    if logprob.device.type != "cpu" or stops.any() or finished.ended.any():
        return False
    return bool(logprob[:, 0].min() > -math.inf)  # NaN would stand first


def beam_search(
    model: base.Predictor, state: Any, ids: Int[Tensor, "B 1"], spec: SearchConfig, longest: int, lines: Sequence[int]
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each sentence, best first.

    Args:
        model: read through `advance` and `output` only.
        state: what `model.start` answered for B sentences.
        ids: the token that each output follows.
        spec: beam, n_best <= beam, length_penalty and the constraints.
        longest: the most tokens, EOS included.
        lines: number of each sentence, for messages.

    Raises DataError: the model answers NaN.
    """
    active = torch.arange(len(ids), device=ids.device)
    prefix = ids[:, :0] if spec.no_repeat_ngram else None
    hidden, state = base.advance(model, ids, state)
    live = hidden.new_zeros((len(ids), 1), dtype=base.score_type(hidden))  # one beam each at first
    trellis = Trellis(len(ids), spec, longest, live)
    finished = trellis.finished.take(active)
    first, size = active[:, None], model.output.out_features  # row of each sentence; V
    for step in range(longest):
        for exact in (False, True):  # again where there were ties
            best = candidates(model, hidden, live, spec, step, prefix, exact)
            decided = decide(best, size, finished, step + 1, longest, spec)
            tied, nan, *done = decided[3].tolist()  # waits for the device
            if nan:
                base.refuse_nan(lines)
            if not tied:
                break
        live, place, finished, _ = decided
        trellis.steps.append((active, place))
        rows, stay = first + place // size, None  # the row that each hypothesis continues
        if step + 1 == longest or (done and all(done)):
            trellis.close(active, finished, live)
            break
        if any(done) and (kept := base.compact_batch(model, done)):
            trellis.close(active, finished, live)
            stay = torch.tensor(kept, device=ids.device)
            active, live, rows, place = (x.index_select(0, stay) for x in (active, live, rows, place))
            finished = finished.take(stay)
        if step == 0 or stay is not None:
            first = torch.arange(len(active), device=ids.device)[:, None] * spec.beam
        ids, rows = (place % size).reshape(-1, 1), rows.flatten()
        if prefix is not None:
            prefix = torch.cat((prefix.index_select(0, rows), ids), 1)
        hidden, state = base.advance(model, ids, state.select(rows, stay))
    return trellis.hypotheses(size)
