"""Search over several contexts at once: to a search, the contexts of a prompt are one model."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.data.tokenizer import EOS
from attnkit.nbce.merge import Merged, Rule, merge_rows
from attnkit.nbce.reader import BATCH_TOKENS, ContextReader, Kept, PromptRow
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import Hypothesis, score_type
from attnkit.search.beam import beam_search
from attnkit.search.sample import step_by_step

Emit = Callable[[int], object]


class MergedStep(NamedTuple):
    """Who spoke when a token was chosen."""

    chosen: int | None
    """Context from 0; None where the pool mixes them."""
    entropies: tuple[float, ...]
    """Of each context, after the cut, in nats."""
    apart: bool
    """The kept sets did not meet."""


class Answer(NamedTuple):
    """What a search found for one prompt."""

    hypotheses: list[Hypothesis]
    """Best first; ids are the reader's."""
    steps: list[MergedStep]
    """Of the best one, a step a token, its end token included."""


class Standing(NamedTuple):
    """Where R = prompts x beams hypotheses stand; the reader's rows are [prompts, rows, beams]."""

    kept: Kept
    rows: int
    """Contexts of each prompt, and the empty one."""
    lines: Int[Tensor, " P"]
    """Number of each prompt."""
    previous: Int[Tensor, " R"]
    """The context that spoke last; -1 before the first token."""
    written: Int[Tensor, "R t"] | None
    """Tokens so far; None before the prompt's last token is read."""
    reader: ContextReader

    def select(self, rows: Int[Tensor, " n"], stay: Int[Tensor, " b"] | None) -> "Standing":
        """As `Decode.select`."""
        lines = self.lines if stay is None else self.lines[stay]
        before, now = len(self.previous) // len(self.lines), len(rows) // max(1, len(lines))
        context = torch.arange(self.rows, device=rows.device)
        old = rows.view(-1, 1, now)
        places = (old // before * self.rows + context[:, None]) * before + old % before
        begun = None if stay is None else (stay[:, None] * self.rows + context).flatten()
        kept = self.reader.select(self.kept, places.flatten(), begun)
        written = None if self.written is None else self.written[rows]
        return self._replace(kept=kept, lines=lines, previous=self.previous[rows], written=written)


class Output:
    """The search projects hidden states to the vocabulary; here they are log-probabilities."""

    def __init__(self, size: int) -> None:
        self.out_features = size

    def __call__(self, hidden: Tensor) -> Tensor:
        """The same."""
        return hidden


class MergedModel:
    """What a search reads: `advance` and `output`."""

    def __init__(
        self,
        reader: ContextReader,
        rule: Rule | None,
        traced: bool = False,
        emit: Emit | None = None,
    ) -> None:
        """`rule` None: each prompt has one row, which is continued as it is.

        `traced` records the steps; `emit` is given each token (the reader's) once it is read, which
        makes sense for one prompt and one hypothesis.
        """
        self.reader, self.rule, self.traced, self.emit = reader, rule, traced, emit
        self.output = Output(reader.size + reader.special)
        self.steps: dict[tuple[int, ...], MergedStep] = {}

    def start(self, prompts: Sequence[Sequence[PromptRow]], budget: int = BATCH_TOKENS) -> Standing:
        """Read the rows of all prompts, equally many each."""
        rows = [row for some in prompts for row in some]
        count, device = len(prompts), self.reader.device
        previous = torch.full((count,), -1, device=device)
        lines = torch.arange(count, device=device)
        kept = self.reader.begin(rows, budget)
        return Standing(kept, len(prompts[0]), lines, previous, None, self.reader)

    def advance(
        self, ids: Int[Tensor, "R 1"], state: Standing
    ) -> tuple[Float[Tensor, "R 1 V"], Standing]:
        """Log-probabilities of the token after these, which are the search's."""
        prompts, beams = len(state.lines), len(ids) // len(state.lines)
        shape = (prompts, state.rows, beams)
        own = (ids - self.reader.special).view(prompts, 1, beams).expand(shape).reshape(-1, 1)
        logits, kept = self.reader.step(own, state.kept)
        rows = logits.view(*shape, -1).transpose(1, 2).flatten(0, 1)  # [R, rows, V]
        merged = self._merged(rows, state.previous)
        first = state.written is None
        written = ids[:, :0] if state.written is None else torch.cat((state.written, ids), 1)
        state = state._replace(kept=kept, previous=merged.chosen, written=written)
        if self.emit is not None and not first:
            self.emit(int(own[0]))
        if self.traced:
            self._record(merged, state)
        return self._raised(merged.logprobs)[:, None], state

    def _merged(self, rows: Float[Tensor, "R n V"], previous: Int[Tensor, " R"]) -> Merged:
        if self.rule is not None:
            return merge_rows(rows, self.rule, previous)
        alone = rows[:, 0].to(score_type(rows)).log_softmax(-1)
        none = torch.zeros_like(previous, dtype=torch.bool)
        return Merged(alone, previous, alone[:, :0], none)

    def _raised(self, logprobs: Float[Tensor, "R V"]) -> Float[Tensor, "R U"]:
        """In the search's vocabulary, whose EOS stands for all tokens that end a text."""
        count = self.reader.special
        if not count:
            return logprobs
        ends = torch.tensor(sorted(self.reader.ends), dtype=torch.long, device=logprobs.device)
        special = logprobs.new_full((len(logprobs), count), -torch.inf)
        special[:, EOS] = logprobs[:, ends].logsumexp(1)
        out = torch.cat((special, logprobs), 1)
        out[:, ends + count] = -torch.inf
        return out

    def _record(self, merged: Merged, state: Standing) -> None:
        assert state.written is not None
        beams = len(state.previous) // len(state.lines)
        lines = state.lines.repeat_interleave(beams).tolist()
        for line, ids, chosen, entropies, apart in zip(
            lines, state.written.tolist(), merged.chosen.tolist(), merged.entropies.tolist(),
            merged.apart.tolist(), strict=True,
        ):  # fmt: skip
            speaker = None if chosen < 0 else chosen
            self.steps[line, *ids] = MergedStep(speaker, tuple(entropies), apart)


@torch.inference_mode()
def answers(
    reader: ContextReader,
    prompts: Sequence[Sequence[PromptRow]],
    rule: Rule | None,
    spec: SearchConfig,
    *,
    lines: Sequence[int] | None = None,
    traced: bool = False,
    emit: Emit | None = None,
    budget: int = BATCH_TOKENS,
) -> list[Answer]:
    """Continue each prompt from all its rows at once.

    Args:
        reader: the model.
        prompts: the rows of each prompt, equally many: the empty context first where there is a
            rule, else one row.  The rows of a prompt end alike.
        rule: how contexts are merged; None continues single rows.
        spec: greedy, beam or sampling, and its limits.
        lines: number of each prompt, which seeds sampling; default 0, 1, ...
        traced: record which context spoke at each token.
        emit: see `MergedModel`.
        budget: tokens read in one pass before the first step.

    Raises:
        UsageError: a row is too long or empty, or the rule does not fit the contexts.
        DataError: the model answers NaN.
    """
    if not prompts:
        return []
    if rule is not None:
        rule.check(len(prompts[0]) - 1)
    for rows in prompts:
        reader.check(rows, spec.max_length)
    model = MergedModel(reader, rule, traced, emit)
    state = model.start(prompts, budget)
    last = torch.tensor([[rows[0].tail[-1]] for rows in prompts], device=reader.device)
    method = beam_search if spec.method == "beam" else step_by_step
    numbers = range(len(prompts)) if lines is None else lines
    found = method(model, state, last + reader.special, spec, spec.max_length, list(numbers))
    return [_answer(model, line, some) for line, some in enumerate(found)]


def _answer(model: MergedModel, line: int, found: Sequence[Hypothesis]) -> Answer:
    """The hypotheses in the reader's ids, with the steps of the best one."""
    up = model.reader.special
    own = [one._replace(ids=[i - up for i in one.ids]) for one in found]
    steps = []
    if model.traced and found:
        ids = found[0].ids
        keys = [(line, *ids[:t]) for t in range(len(ids) + found[0].complete)]
        steps = [model.steps[key] for key in keys if key in model.steps]
    return Answer(own, steps)
