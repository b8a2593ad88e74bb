"""Search over merged contexts: all contexts of a prompt behave like one model."""

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
from attnkit.search.sample import greedy_or_sample

TRACED = 64
"""Number of likeliest tokens whose log-probabilities under each context are recorded for the trace."""


class TracedToken(NamedTuple):
    """One token of an answer, with statistics of the contexts."""

    text: str
    """Text that the token adds to the answer; "" until decoded, or if a later token completes the character."""
    chosen: int | None
    """0-based index of the selected context; None if the pool mixes contexts."""
    entropies: tuple[float, ...]
    """Entropy of each context in nats, after truncation."""
    agreed: bool = False
    """Whether the token is the likeliest both without context and under the selected context, if any."""
    logprobs: tuple[float, ...] = ()
    """Log-probability (nats) of the token under each context; () if sampled from beyond the `TRACED` likeliest."""
    end: bool = False
    """Whether the token ended the answer."""

    @property
    def main_context(self) -> int:
        """Selected context, or the context of minimum entropy if the pool mixes contexts."""
        if self.chosen is not None:
            return self.chosen
        return min(range(len(self.entropies)), key=self.entropies.__getitem__)


class Answer(NamedTuple):
    """Result of a search for one prompt."""

    hypotheses: list[Hypothesis]
    """Hypotheses, best first, with the reader's token ids."""
    steps: list[TracedToken]
    """Trace of the best hypothesis, end token included; empty unless contexts were merged."""
    prompt: tuple[float, ...] = ()
    """Log-probability of the prompt under each context, in nats; () if unknown."""


class MergedState(NamedTuple):
    """State of R = prompts x beams hypotheses; the reader's rows are [prompts, rows, beams]."""

    cache: Decode
    rows: int
    """Number of rows per prompt: its contexts and the empty context."""
    lines: Int[Tensor, " P"]
    """Index of each prompt in the batch."""
    previous: Int[Tensor, " R"]
    """Context selected at the last step; -1 before the first token."""
    written: Int[Tensor, "R t"] | None
    """Generated tokens; None before the prompt's last token is read."""
    reader: ContextReader

    def select(self, rows: Int[Tensor, " n"], stay: Int[Tensor, " b"] | None) -> "MergedState":
        """See `Decode.select`."""
        lines = self.lines if stay is None else self.lines[stay]
        old_beams, new_beams = len(self.previous) // len(self.lines), len(rows) // max(1, len(lines))
        context = torch.arange(self.rows, device=rows.device)
        hypotheses = rows.view(-1, 1, new_beams)
        # from indices into [prompts, beams] to indices into [prompts, rows, beams]
        indices = (hypotheses // old_beams * self.rows + context[:, None]) * old_beams + hypotheses % old_beams
        begun = None if stay is None else (stay[:, None] * self.rows + context).flatten()
        cache = self.reader.select(self.cache, indices.flatten(), begun)
        written = None if self.written is None else self.written[rows]
        return self._replace(cache=cache, lines=lines, previous=self.previous[rows], written=written)


class MergedModel:
    """A `search.base.Predictor` of merged contexts, and its own `output`, since `advance` gives log-probabilities."""

    def __init__(self, reader: ContextReader, rule: Rule | None) -> None:
        """Without `rule`, each prompt has a single row, which is continued without merging."""
        self.reader, self.rule = reader, rule
        self.output, self.out_features = self, reader.size + reader.id_offset
        self.prompts: list[tuple[float, ...]] = []
        """By line: log-probability of the prompt under each context, in nats."""
        self.steps: dict[tuple[int, ...], tuple[TracedToken, int | None, list[int], Tensor]] = {}
        """By line and prefix: trace of the step; the token likeliest both without context and under the selected
        context, if the same; the likeliest tokens; their log-probabilities [tokens, contexts]."""

    def __call__(self, hidden: Tensor) -> Tensor:
        return hidden

    def start(self, prompts: Sequence[Sequence[PromptRow]]) -> MergedState:
        """Read the rows of all prompts, which have the same number of rows."""
        rows = [row for prompt in prompts for row in prompt]
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
        """Compute log-probabilities of the next token after `ids`; both use the search's token ids."""
        prompts, beams = len(state.lines), len(ids) // len(state.lines)
        shape = (prompts, state.rows, beams)
        # finished hypotheses are continued with arbitrary tokens, possibly outside the reader's vocabulary
        reader_ids = (ids - self.reader.id_offset).clamp_min(0)
        tokens = reader_ids.view(prompts, 1, beams).expand(shape).reshape(-1, 1)
        logits, cache = self.reader.step(tokens, state.cache)
        rows = logits.view(*shape, -1).transpose(1, 2).flatten(0, 1)  # [R, rows, V]
        if self.rule is not None:
            merged = merge_rows(rows, self.rule, state.previous)
        else:
            logprobs = rows[:, 0].to(score_type(rows)).log_softmax(-1)
            merged = MergedDistributions(logprobs, state.previous, logprobs[:, :0], logprobs[:, None])
        written = ids[:, :0] if state.written is None else torch.cat((state.written, ids), 1)
        state = state._replace(cache=cache, previous=merged.chosen, written=written)
        if self.rule is not None:
            self._record(merged, state, written)
        return self._to_search_ids(merged.logprobs)[:, None], state

    def _record(self, merged: MergedDistributions, state: MergedState, written: Int[Tensor, "R t"]) -> None:
        """Record the log-probabilities of the likeliest tokens after `written` under each context."""
        rows = merged.rows
        by_row = self._to_search_ids(rows.flatten(0, 1)).view(*rows.shape[:2], -1)  # [R, rows, U]
        hypotheses = torch.arange(len(rows), device=rows.device)
        alone, selected = by_row[:, 0].argmax(-1), by_row[hypotheses, merged.chosen + 1].argmax(-1)
        pooled = self._to_search_ids(merged.logprobs)
        likeliest = pooled.topk(min(TRACED, pooled.shape[1])).indices
        by_context = by_row[:, 1:].gather(2, likeliest[:, None].expand(-1, rows.shape[1] - 1, -1))
        beams = len(rows) // len(state.lines)
        for line, prefix, chosen, entropies, top_alone, top_selected, tokens, logprobs in zip(
            state.lines.repeat_interleave(beams).tolist(),
            written.tolist(),
            merged.chosen.tolist(),
            merged.entropies.tolist(),
            alone.tolist(),
            selected.tolist(),
            likeliest.tolist(),
            by_context.mT.cpu(),
            strict=True,
        ):
            step = TracedToken("", None if chosen < 0 else chosen, tuple(entropies))
            agreed = top_alone if top_alone == top_selected else None
            self.steps[line, *prefix] = step, agreed, tokens, logprobs

    def _to_search_ids(self, logprobs: Float[Tensor, "R V"]) -> Float[Tensor, "R U"]:
        """Convert to the search's vocabulary, whose EOS has the total probability of the reader's end tokens."""
        offset = self.reader.id_offset
        if not offset:
            return logprobs
        ends = torch.tensor(sorted(self.reader.ends), dtype=torch.long, device=logprobs.device)
        special = logprobs.new_full((len(logprobs), offset), -torch.inf)
        special[:, EOS] = logprobs[:, ends].logsumexp(1)
        out = torch.cat((special, logprobs), 1)  # U = offset + V
        out[:, ends + offset] = -torch.inf
        return out

    def answer(self, line: int, hypotheses: Sequence[Hypothesis]) -> Answer:
        """Convert the hypotheses to the reader's token ids and look up the trace of the best hypothesis."""
        steps = []
        for best in hypotheses[:1]:
            for i, token in enumerate([*best.ids, *([EOS] if best.complete else [])]):
                if recorded := self.steps.get((line, *best.ids[:i])):
                    step, agreed, tokens, logprobs = recorded
                    by_context = logprobs[tokens.index(token)].tolist() if token in tokens else ()
                    steps.append(step._replace(agreed=token == agreed, logprobs=tuple(by_context)))
        offset, prompt = self.reader.id_offset, self.prompts[line] if self.prompts else ()
        converted = [hypothesis._replace(ids=[i - offset for i in hypothesis.ids]) for hypothesis in hypotheses]
        return Answer(converted, steps, prompt)


@torch.inference_mode()
def answers(
    reader: ContextReader,
    prompts: Sequence[Sequence[PromptRow]],
    rule: Rule | None,
    spec: SearchConfig,
    *,
    lines: Sequence[int] | None = None,
) -> list[Answer]:
    """Generate an answer to each prompt from all its rows, in batches of prompts.

    Args:
        prompts: rows of each prompt, which share one tail, the row with the empty context first.
        rule: merge rule; None: each prompt has a single row, which is continued without merging.
        spec: search settings; `batch_tokens` limits rows x tokens cached at once (a prompt is never split).
        lines: numbers of the prompts, which seed sampling; default 0, 1, ...

    Raises:
        UsageError: A row is too long or empty, or the rule does not fit the contexts.
        DataError: The model returns NaN.
    """
    for rows in prompts:
        if rule is not None:
            rule.check(len(rows) - 1)
        reader.check(rows, spec.max_length)
    method = beam_search if spec.method == "beam" else greedy_or_sample
    numbers = range(len(prompts)) if lines is None else lines
    results: dict[int, Answer] = {}
    for indices in _batches(prompts, spec):
        batch = [prompts[index] for index in indices]
        model = MergedModel(reader, rule)
        state = model.start(batch)
        last = torch.tensor([[rows[0].tail[-1]] for rows in batch], device=reader.device)
        seeds = [numbers[index] for index in indices]
        outputs = method(model, state, last + reader.id_offset, spec, spec.max_length, seeds)
        for line, (index, hypotheses) in enumerate(zip(indices, outputs, strict=True)):
            results[index] = model.answer(line, hypotheses)
    return [results[index] for index in range(len(prompts))]


def _batches(prompts: Sequence[Sequence[PromptRow]], spec: SearchConfig) -> Iterator[list[int]]:
    """Yield batches of prompt indices with equal numbers of rows and windows, within `spec.batch_tokens`."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, rows in enumerate(prompts):
        groups[len(rows), 1 + len(rows[0].other_heads)].append(index)
    for (num_rows, windows), indices in groups.items():
        batch: list[int] = []
        longest = 0
        for index in indices:
            length = max(row.longest for row in prompts[index]) * windows + spec.max_length
            longest = max(longest, length)
            if batch and (len(batch) + 1) * num_rows * spec.width * longest > spec.batch_tokens:
                yield batch
                batch, longest = [], length
            batch.append(index)
        yield batch
