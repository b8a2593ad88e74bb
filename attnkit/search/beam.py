"""Beam search.

At each step each sentence has up to 2K candidates (K beams). The K best candidates without EOS stay live; candidates
with EOS among the first K are finished. 2K, because at most K candidates have EOS, so K others always remain.

A sentence stops when K of its hypotheses have finished, or when no live hypothesis can still enter its n-best list.
The latter is exact: a log-probability L only falls, so a hypothesis that ends with n tokens scores at most
L / n ** length_penalty, whose maximum is at the maximum n for a positive penalty and at the minimum n for a negative
penalty. Hypotheses that reach the last step without EOS fill the rest of the n-best list.

The selected tokens form a trellis of (token, parent beam): nothing is copied when beams are reordered, and sentences
that leave the batch keep their column.
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
    """N best finished hypotheses of each sentence, best first; score -inf: empty place."""

    score: Float[Tensor, "b N"]
    logprob: Float[Tensor, "b N"]
    length: Int[Tensor, "b N"]
    """Tokens, EOS included."""
    beam: Int[Tensor, "b N"]
    """Parent beam of EOS."""
    ended: Int[Tensor, " b"]
    """Number of finished hypotheses, including those outside the n best."""

    @classmethod
    def empty(cls, sentences: int, n_best: int, like: Tensor) -> Self:
        """Return empty n-best lists."""
        score, logprob = like.new_full((2, sentences, n_best), -math.inf)
        length, beam = torch.zeros((2, sentences, n_best), dtype=torch.long, device=like.device)
        return cls(score, logprob, length, beam, length.new_zeros(sentences))

    def add(
        self,
        ends: Bool[Tensor, "b K"],
        logprob: Float[Tensor, "b K"],
        beam: Int[Tensor, "b K"],
        length: int,
        length_penalty: float,
    ) -> Self:
        """Return the n best including the candidates selected by `ends`; of equal scores the earlier comes first."""
        new_score = (logprob / length**length_penalty).masked_fill(~ends, -math.inf)
        n_best = self.score.shape[1]
        score, order = torch.cat((self.score, new_score), 1).sort(dim=1, descending=True, stable=True)
        order = order[:, :n_best]
        lengths = torch.full_like(beam, length)
        return type(self)(
            score[:, :n_best],
            torch.cat((self.logprob, logprob), 1).gather(1, order),
            torch.cat((self.length, lengths), 1).gather(1, order),
            torch.cat((self.beam, beam), 1).gather(1, order),
            self.ended + ends.sum(1),
        )

    def select(self, rows: Int[Tensor, " n"]) -> Self:
        """Return the lists of these rows."""
        return type(self)(*(field.index_select(0, rows) for field in self))


class Trellis:
    """Live hypotheses of a batch as a trellis of tokens and parent beams, and the finished hypotheses."""

    def __init__(self, sentences: int, spec: SearchConfig, max_length: int, like: Tensor) -> None:
        self.spec, self.max_length = spec, max_length
        self.steps: list[tuple[Int[Tensor, " b"], Int[Tensor, "b K"]]] = []
        """For each step the sentences in the batch, and the indices (see `candidates`) of their hypotheses."""
        self.finished = FinishedHypotheses.empty(sentences, spec.n_best, like)
        self.live = like.new_full((sentences, spec.beam), -math.inf)

    def store(self, active: Int[Tensor, " b"], finished: FinishedHypotheses, live: Float[Tensor, "b K"]) -> None:
        """Store the finished and the live hypotheses of the sentences `active`."""
        for whole, part in zip((*self.finished, self.live), (*finished, live), strict=True):
            whole[active] = part

    def hypotheses(self, size: int) -> list[list[Hypothesis]]:
        """Return the n best of each sentence: finished, then live hypotheses, both best first; `size` is V."""
        finished, n_best = self.finished, self.spec.n_best
        live_beams = torch.arange(self.spec.beam, device=self.live.device).expand_as(self.live)
        live_lengths = self.max_length * (self.live > -math.inf).long()  # live hypotheses have no EOS
        length = torch.cat(((finished.length - 1).clamp_min(0), live_lengths), 1).tolist()  # without EOS
        # backtrack from the beam of the last token to the first token
        shape = (len(self.steps), *self.live.shape)
        index_table = torch.zeros(shape, dtype=torch.long, device=self.live.device)
        for step, (active, index) in enumerate(self.steps):
            index_table[step, active] = index
        parent_table, token_table = np.divmod(index_table.cpu().numpy(), size)  # [steps, B, K]
        lengths, beam = np.asarray(length), torch.cat((finished.beam, live_beams), 1).cpu().numpy()  # [B, n]
        sentence = np.arange(len(beam))[:, None]
        ids = np.zeros((*beam.shape, int(lengths.max(initial=0))), np.int64)  # [B, n, maximum length]
        for step in reversed(range(ids.shape[2])):
            inside = step < lengths
            ids[..., step] = np.where(inside, token_table[step, sentence, beam], 0)
            beam = np.where(inside, parent_table[step, sentence, beam], beam)
        live_score = self.live / self.max_length**self.spec.length_penalty
        score = torch.cat((finished.score, live_score), 1).tolist()
        logprob = torch.cat((finished.logprob, self.live), 1).tolist()
        answers = []
        for row, values in enumerate(score):
            best = [n for n, value in enumerate(values) if value > -math.inf][:n_best]
            tokens = {n: ids[row, n, : length[row][n]].tolist() for n in best}
            answers.append([Hypothesis(tokens[n], values[n], logprob[row][n], n < n_best) for n in best])
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
    """Return the 2 * beam best continuations of each sentence's W hypotheses.

    Returns log-probabilities, indices (parent beam * V + token), and whether ties remain, as `base.topk`. On a CPU,
    where `exact` needs no wait for the device, equal scores are always in order of index.
    """
    exact = exact or hidden.device.type == "cpu"
    width, beams, parts = 2 * spec.beam, live.shape[1], []
    for rows, scores in base.next_scores(model, hidden, spec, produced, prefix, beams):
        parts.append(base.topk(scores, width, exact, live.reshape(-1)[rows].view(-1, beams)))
    logprobs, indices, ties = zip(*parts, strict=True)
    logprob, index, tied = parts[0]
    if len(parts) > 1:
        logprob, index, tied = torch.cat(logprobs), torch.cat(indices), torch.stack(ties).any()
    if logprob.shape[1] < width:  # the vocabulary is smaller than the candidate list
        padding = (0, width - logprob.shape[1])
        logprob, index = F.pad(logprob, padding, value=-math.inf), F.pad(index, padding, value=EOS)
    return logprob, index, tied


def split_candidates(
    best: tuple[Tensor, Tensor, Tensor],
    size: int,
    finished: FinishedHypotheses,
    length: int,
    max_length: int,
    spec: SearchConfig,
) -> tuple[Float[Tensor, "b K"], Int[Tensor, "b K"], FinishedHypotheses, Bool[Tensor, " n"]]:
    """Split the best `candidates` of token number `length` (of `max_length`) into live and finished hypotheses.

    Returns the log-probabilities and indices of live hypotheses, the finished hypotheses, and a status for the host:
    whether ties remain, whether there is a NaN, and which sentences are done (omitted if no hypothesis has ended).
    `size` is V. The arguments are not modified.
    """
    beams, (logprob, index, tied) = spec.beam, best
    stops = index % size == EOS
    if nothing_ends(stops, logprob, finished):
        status = torch.stack((tied, torch.zeros_like(tied)))  # nothing here is NaN
        return logprob[:, :beams], index[:, :beams], finished, status
    ends = (stops & (logprob > -math.inf))[:, :beams]
    finished = finished.add(ends, logprob[:, :beams], index[:, :beams] // size, length, spec.length_penalty)
    # a stable sort of the flags brings the unfinished candidates to the front, in order
    order = stops.to(torch.uint8).argsort(dim=1, stable=True)[:, :beams]
    live = logprob.gather(1, order).masked_fill(stops.gather(1, order), -math.inf)
    # upper bound on the score of live hypotheses: log-probabilities only fall
    bound = live[:, 0] / (max_length if spec.length_penalty > 0 else length + 1) ** spec.length_penalty
    done = (finished.ended >= beams) | (finished.score[:, -1] >= bound)
    status = torch.cat((torch.stack((tied, live.isnan().any())), done))
    live = live.masked_fill(done[:, None], -math.inf)  # nothing more enters their n-best lists
    return live, index.gather(1, order), finished, status


def nothing_ends(stops: Bool[Tensor, "b k"], logprob: Float[Tensor, "b k"], finished: FinishedHypotheses) -> bool:
    """Return whether no hypothesis ends or has ended, and none is NaN; False if the check would wait for a device."""
    if logprob.device.type != "cpu" or stops.any() or finished.ended.any():
        return False
    return bool(logprob[:, 0].min() > -math.inf)  # topk puts NaN first, and NaN > -inf is False


def beam_search(
    model: base.Predictor,
    state: Any,
    ids: Int[Tensor, "B 1"],
    spec: SearchConfig,
    max_length: int,
    lines: Sequence[int],
) -> list[list[Hypothesis]]:
    """Return the n best hypotheses of each sentence, best first.

    Args:
        state: state that `model.start` returned for B sentences.
        ids: the token before each output.
        spec: `beam`, `n_best` (at most `beam`), `length_penalty` and the constraints.
        max_length: maximum number of tokens, EOS included.
        lines: number of each sentence, for messages.

    Raises DataError if the model returns NaN.
    """
    active = torch.arange(len(ids), device=ids.device)
    prefix = ids[:, :0] if spec.no_repeat_ngram else None
    hidden, state = base.advance(model, ids, state)
    live = hidden.new_zeros((len(ids), 1), dtype=base.score_type(hidden))  # one hypothesis each at first
    trellis = Trellis(len(ids), spec, max_length, live)
    finished = trellis.finished.select(active)
    first_row, size = active[:, None], model.output.out_features  # first row of each sentence; V
    for step in range(max_length):
        for exact in (False, True):  # repeated if ties remain
            best = candidates(model, hidden, live, spec, step, prefix, exact)
            next_live, index, next_finished, status = split_candidates(
                best, size, finished, step + 1, max_length, spec
            )
            tied, nan, *done = status.tolist()  # waits for the device
            if nan:
                base.raise_nan(lines)
            if not tied:
                break
        live, finished = next_live, next_finished
        trellis.steps.append((active, index))
        rows, kept_rows = first_row + index // size, None  # parent row of each hypothesis
        if step + 1 == max_length or (done and all(done)):
            trellis.store(active, finished, live)
            break
        if any(done) and (kept := base.compact_batch(model, done)):
            trellis.store(active, finished, live)
            kept_rows = torch.tensor(kept, device=ids.device)
            active, live, rows, index = (x.index_select(0, kept_rows) for x in (active, live, rows, index))
            finished = finished.select(kept_rows)
        if step == 0 or kept_rows is not None:
            first_row = torch.arange(len(active), device=ids.device)[:, None] * spec.beam
        ids, rows = (index % size).reshape(-1, 1), rows.flatten()
        if prefix is not None:
            prefix = torch.cat((prefix.index_select(0, rows), ids), 1)
        hidden, state = base.advance(model, ids, state.select(rows, kept_rows))
    return trellis.hypotheses(size)
