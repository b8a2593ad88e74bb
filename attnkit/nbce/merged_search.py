"""Search over several contexts at once: to a search, the contexts of a prompt are one model."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.data.tokenizer import EOS
from attnkit.models.base import Decode
from attnkit.nbce.merge import MergedDistributions, Rule, merge_rows
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import Hypothesis, score_type
from attnkit.search.beam import beam_search
from attnkit.search.sample import step_by_step

TRACED = 64
"""Likeliest tokens whose log-probabilities under each context are kept for the trace."""


class TracedToken(NamedTuple):
    """One token of an answer, and what the contexts contributed to it."""

    text: str
    """What it adds to the answer, once known; "" where a later token completes the character."""
    chosen: int | None
    """The selected context, from 0; None where the pool mixes them."""
    entropies: tuple[float, ...]
    """Of each context, after the cut, in nats."""
    agreed: bool = False
    """It is the likeliest token without any context too, and of the selected one if there is."""
    logprobs: tuple[float, ...] = ()
    """Of the token under each context, in nats; () where it was not among the `TRACED` likeliest,
    which sampling may do."""
    end: bool = False
    """It ended the answer."""

    @property
    def main_context(self) -> int:
        """The selected context, or that of least entropy where the pool mixes them."""
        if self.chosen is not None:
            return self.chosen
        return min(range(len(self.entropies)), key=self.entropies.__getitem__)


class Answer(NamedTuple):
    """What a search found for one prompt."""

    hypotheses: list[Hypothesis]
    """Best first; ids are the reader's."""
    steps: list[TracedToken]
    """Of the best one where contexts were merged, a step a token, its end token included."""
    prompt: tuple[float, ...] = ()
    """Log-probability (nats) of the prompt under each context; () where it is not known."""


class MergedState(NamedTuple):
    """R = prompts x beams hypotheses; the reader's rows are [prompts, rows, beams]."""

    cache: Decode
    rows: int
    """Contexts of each prompt, and the empty one."""
    lines: Int[Tensor, " P"]
    """Number of each prompt."""
    previous: Int[Tensor, " R"]
    """The context that was selected last; -1 before the first token."""
    written: Int[Tensor, "R t"] | None
    """Tokens so far; None before the prompt's last token is read."""
    reader: ContextReader

    def select(self, rows: Int[Tensor, " n"], stay: Int[Tensor, " b"] | None) -> "MergedState":
        """As `Decode.select`."""
        lines = self.lines if stay is None else self.lines[stay]
        before, now = len(self.previous) // len(self.lines), len(rows) // max(1, len(lines))
        context = torch.arange(self.rows, device=rows.device)
        old = rows.view(-1, 1, now)
        places = (old // before * self.rows + context[:, None]) * before + old % before
        begun = None if stay is None else (stay[:, None] * self.rows + context).flatten()
        cache = self.reader.select(self.cache, places.flatten(), begun)
        written = None if self.written is None else self.written[rows]
        return self._replace(cache=cache, lines=lines, previous=self.previous[rows], written=written)


class MergedModel:
    """All contexts of each prompt as one model, as `search.base.Predictor` asks.

    It is its own `output`: what `advance` answers are log-probabilities already.
    """

    def __init__(self, reader: ContextReader, rule: Rule | None) -> None:
        """`rule` None: each prompt has one row, which is continued as it is."""
        self.reader, self.rule = reader, rule
        self.output, self.out_features = self, reader.size + reader.special
        self.prompts: list[tuple[float, ...]] = []
        """By line: log-probability of the prompt under each context."""
        self.steps: dict[tuple[int, ...], tuple[TracedToken, int | None, list[int], Tensor]] = {}
        """By line and tokens before: what the contexts say, the token on which all agree, the
        likeliest tokens, and their log-probabilities under each context [tokens, contexts]."""

    def __call__(self, hidden: Tensor) -> Tensor:
        return hidden

    def start(self, prompts: Sequence[Sequence[PromptRow]]) -> MergedState:
        """Read the rows of all prompts, equally many each."""
        rows = [row for some in prompts for row in some]
        count, device = len(prompts), self.reader.device
        previous = torch.full((count,), -1, device=device)
        lines = torch.arange(count, device=device)
        if self.rule is not None and self.reader.scores_prompts:
            cache, scores = self.reader.begin_scored(rows)
            self.prompts = [tuple(row[1:]) for row in scores.view(count, -1).tolist()]
        else:
            cache = self.reader.begin(rows)
        return MergedState(cache, len(prompts[0]), lines, previous, None, self.reader)

    def advance(self, ids: Int[Tensor, "R 1"], state: MergedState) -> tuple[Float[Tensor, "R 1 V"], MergedState]:
        """Log-probabilities of the token after these, which are the search's."""
        prompts, beams = len(state.lines), len(ids) // len(state.lines)
        shape = (prompts, state.rows, beams)
        # outputs that have ended go on with any token, also one that the reader does not have
        own = (ids - self.reader.special).clamp_min(0)
        tokens = own.view(prompts, 1, beams).expand(shape).reshape(-1, 1)
        logits, cache = self.reader.step(tokens, state.cache)
        rows = logits.view(*shape, -1).transpose(1, 2).flatten(0, 1)  # [R, rows, V]
        if self.rule is not None:
            merged = merge_rows(rows, self.rule, state.previous)
        else:
            alone = rows[:, 0].to(score_type(rows)).log_softmax(-1)
            merged = MergedDistributions(alone, state.previous, alone[:, :0], alone[:, None])
        written = ids[:, :0] if state.written is None else torch.cat((state.written, ids), 1)
        state = state._replace(cache=cache, previous=merged.chosen, written=written)
        if self.rule is not None:
            self._record(merged, state, written)
        return self._to_search_ids(merged.logprobs)[:, None], state

    def _record(self, merged: MergedDistributions, state: MergedState, written: Int[Tensor, "R t"]) -> None:
        """Keep what the contexts say of the likeliest tokens behind `written`."""
        rows = merged.rows
        logs = self._to_search_ids(rows.flatten(0, 1)).view(*rows.shape[:2], -1)  # [R, rows, U]
        every = torch.arange(len(rows), device=rows.device)
        alone, selected = logs[:, 0].argmax(-1), logs[every, merged.chosen + 1].argmax(-1)
        pooled = self._to_search_ids(merged.logprobs)
        likeliest = pooled.topk(min(TRACED, pooled.shape[1])).indices
        known = logs[:, 1:].gather(2, likeliest[:, None].expand(-1, rows.shape[1] - 1, -1))
        beams = len(rows) // len(state.lines)
        for line, prefix, chosen, entropies, token, other, tokens, logprobs in zip(
            state.lines.repeat_interleave(beams).tolist(),
            written.tolist(),
            merged.chosen.tolist(),
            merged.entropies.tolist(),
            alone.tolist(),
            selected.tolist(),
            likeliest.tolist(),
            known.mT.cpu(),
            strict=True,
        ):
            step = TracedToken("", None if chosen < 0 else chosen, tuple(entropies))
            both = token if token == other else None
            self.steps[line, *prefix] = step, both, tokens, logprobs

    def _to_search_ids(self, logprobs: Float[Tensor, "R V"]) -> Float[Tensor, "R U"]:
        """In the search's vocabulary, whose EOS stands for all tokens that end a text."""
        count = self.reader.special
        if not count:
            return logprobs
        ends = torch.tensor(sorted(self.reader.ends), dtype=torch.long, device=logprobs.device)
        special = logprobs.new_full((len(logprobs), count), -torch.inf)
        special[:, EOS] = logprobs[:, ends].logsumexp(1)
        out = torch.cat((special, logprobs), 1)  # U = count + V
        out[:, ends + count] = -torch.inf
        return out

    def answer(self, line: int, hypotheses: Sequence[Hypothesis]) -> Answer:
        """The hypotheses in the reader's ids, with the steps of the best one of merged contexts."""
        steps = []
        for one in hypotheses[:1]:
            for at, token in enumerate([*one.ids, *([EOS] if one.complete else [])]):
                if found := self.steps.get((line, *one.ids[:at])):
                    step, both, tokens, logprobs = found
                    under = logprobs[tokens.index(token)].tolist() if token in tokens else ()
                    steps.append(step._replace(agreed=token == both, logprobs=tuple(under)))
        up, prompt = self.reader.special, self.prompts[line] if self.prompts else ()
        return Answer([one._replace(ids=[i - up for i in one.ids]) for one in hypotheses], steps, prompt)


@torch.inference_mode()
def answers(
    reader: ContextReader,
    prompts: Sequence[Sequence[PromptRow]],
    rule: Rule | None,
    spec: SearchConfig,
    *,
    lines: Sequence[int] | None = None,
) -> list[Answer]:
    """Continue each prompt from all its rows at once; prompts are read some at a time.

    The rows of a prompt end alike, the empty context first; without a rule it has one row, which is
    continued as it is.  `lines` number the prompts (default 0, 1, ...), which seeds sampling;
    `spec.batch_tokens` bounds the rows x tokens that are cached at once (one prompt is always read
    whole).

    Raises:
        UsageError: a row is too long or empty, or the rule does not fit the contexts.
        DataError: the model answers NaN.
    """
    for rows in prompts:
        if rule is not None:
            rule.check(len(rows) - 1)
        reader.check(rows, spec.max_length)
    method = beam_search if spec.method == "beam" else step_by_step
    numbers = range(len(prompts)) if lines is None else lines
    found: dict[int, Answer] = {}
    for places in _batches(prompts, spec):
        batch = [prompts[place] for place in places]
        model = MergedModel(reader, rule)
        state = model.start(batch)
        last = torch.tensor([[rows[0].tail[-1]] for rows in batch], device=reader.device)
        seeds = [numbers[place] for place in places]
        some = method(model, state, last + reader.special, spec, spec.max_length, seeds)
        found |= {
            place: model.answer(line, hypotheses)
            for line, (place, hypotheses) in enumerate(zip(places, some, strict=True))
        }
    return [found[place] for place in range(len(prompts))]


def _batches(prompts: Sequence[Sequence[PromptRow]], spec: SearchConfig) -> Iterator[list[int]]:
    """Prompts with equally many rows, as many as may be cached at once with their outputs."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, rows in enumerate(prompts):
        groups[len(rows), 1 + len(rows[0].beside)].append(place)
    for (count, windows), places in groups.items():
        batch: list[int] = []
        longest = 0
        for place in places:
            size = max(row.longest for row in prompts[place]) * windows + spec.max_length
            longest = max(longest, size)
            if batch and (len(batch) + 1) * count * spec.width * longest > spec.batch_tokens:
                yield batch
                batch, longest = [], size
            batch.append(place)
        yield batch
