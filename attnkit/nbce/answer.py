"""Answers to prompts from many contexts, by any method; called by the command and by evaluation."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import torch

from attnkit.errors import UsageError
from attnkit.nbce.baselines import concatenated, prompt_perplexities, side_by_side
from attnkit.nbce.choices import encode_choices, label_logprobs
from attnkit.nbce.merge import POOLS, Rule, merge_rows
from attnkit.nbce.merged_search import Answer, TracedToken, answers
from attnkit.nbce.reader import CausalReader, ContextReader, PromptRow
from attnkit.nbce.sources import Source, named_source
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import Hypothesis
from attnkit.text import hint

BASELINES = ("concat", "window", "cad", "best", "retrieval", "none")
METHODS = POOLS + BASELINES

T = TypeVar("T")


class Reply(NamedTuple):
    """The answer to one prompt."""

    text: str
    """Text of the best hypothesis; "" if there is none."""
    hypotheses: list[Hypothesis]
    """Hypotheses, best first, with the reader's token ids."""
    steps: list[TracedToken]
    """Trace of the best hypothesis; empty unless contexts were merged."""
    context: int | None
    """0-based index of the context selected by `best` or `retrieval`, or of the named source of a merged answer."""
    scores: tuple[float, ...] = ()
    """For each context: score of its answer (`best`) or perplexity of the prompt (`retrieval`); otherwise empty."""
    cut: str = ""
    """Sentence about tokens truncated from the contexts; "" if none were."""
    source: Source | None = None
    """Share of each context in a merged answer."""
    probabilities: Mapping[str, float] = {}
    """Probability of each choice, normalized over the choices; empty without choices."""

    @property
    def complete(self) -> bool:
        """Whether there is an answer, and it was not truncated at the maximum length."""
        return bool(self.hypotheses) and self.hypotheses[0].complete


def reply_of(reader: ContextReader, answer: Answer, asked: "AskedPrompt") -> Reply:
    """Build the reply from the answer of one row or of merged rows."""
    text = reader.decode(answer.hypotheses[0].ids if answer.hypotheses else [])
    source = None
    if answer.steps:
        # the end token says little about the source: it counts only if the answer has no other token
        ended = len(answer.steps) > len(answer.hypotheses[0].ids) > 0
        told = [step.logprobs for step in (answer.steps[:-1] if ended else answer.steps)]
        source = named_source(len(answer.steps[0].entropies), told, answer.prompt)
    context = source.context if source else asked.context
    return Reply(text, answer.hypotheses, answer.steps, context, asked.scores, asked.cut, source=source)


def ask(
    reader: ContextReader,
    method: str,
    contexts: Sequence[Sequence[str]],
    prompts: Sequence[str],
    spec: SearchConfig,
    rule: Rule = Rule(),  # noqa: B008 (immutable)
    *,
    choices: Sequence[str] = (),
    alpha: float = 0.5,
    limit: int | None = None,
) -> list[Reply]:
    """Answer each prompt from its contexts.

    Methods: a pool of `merge.POOLS` merges all contexts at each token; `concat` concatenates them in one row; `window`
    encodes them in parallel and lets the prompt attend to all of them (Ratner et al. 2023); `cad` contrasts the
    concatenation with an empty context (Shi et al. 2024); `best` answers from each context alone and returns the
    likeliest answer; `retrieval` answers from the context under which the prompt has the lowest perplexity; `none`
    answers without context.

    Args:
        spec: search settings; `batch_tokens` limits rows x tokens cached at once (a prompt is never split).
        rule: merge rule of pools; its pool is replaced by `method`.
        choices: the only permitted answers; the likeliest is returned.
        alpha: weight of `cad` in (1 + alpha) log p(T|S) - alpha log p(T).
        limit: maximum length of the row of `concat` and `cad`, output included; None: the model's limit.

    Raises:
        UsageError: The method is unknown or not supported by the model, a prompt is empty or has no context, a row is
            too long, the rule is out of range, or one choice begins with the tokens of another.
        DataError: The model returns NaN.
    """
    check_method(reader, method)
    if len(contexts) != len(prompts):
        raise UsageError(f"got {len(contexts)} sets of contexts for {len(prompts)} prompts")
    if method != "none" and not all(contexts):
        number = [*map(bool, contexts)].index(False) + 1
        raise UsageError(f"prompt {number} has no context: give it one, or choose the method none")
    labels = encode_choices(reader, choices) if choices else {}
    output = max(map(len, labels.values()), default=spec.max_length)
    pairs = zip(contexts, prompts, strict=True)
    asked = [AskedPrompt(*rows_of(reader, method, *pair, output, limit)) for pair in pairs]
    if method == "retrieval":
        found = _by_prompt(asked, prompt_perplexities(reader, [r for p in asked for r in p.rows]))
        asked = [p.answered_by(each.index(min(each)), each) for p, each in zip(asked, found, strict=True)]
    merging = _merging_rule(method, rule, alpha)
    if labels:
        return [_choose(reader, method, one, labels, merging) for one in asked]
    search = partial(answers, reader, spec=spec)
    if method == "best":
        return _best(reader, asked, search)
    written = search([one.rows for one in asked], merging)
    if method not in POOLS:  # the concatenation of cad is no context among others
        written = [one._replace(steps=[]) for one in written]
    return [reply_of(reader, *pair) for pair in zip(written, asked, strict=True)]


class AskedPrompt(NamedTuple):
    """Rows from which a prompt is answered; the other fields are as in `Reply`."""

    rows: Sequence[PromptRow]
    cut: str
    context: int | None = None
    scores: tuple[float, ...] = ()

    def answered_by(self, context: int, scores: tuple[float, ...]) -> "AskedPrompt":
        """Return a copy with only the row of `context`, which was selected by `scores`."""
        return AskedPrompt([self.rows[context]], self.cut, context, scores)


def _by_prompt(asked: Sequence[AskedPrompt], values: Iterable[T]) -> list[tuple[T, ...]]:
    """Group the values of all rows by prompt."""
    remaining = iter(values)
    return [tuple(islice(remaining, len(one.rows))) for one in asked]


def _merging_rule(method: str, rule: Rule, alpha: float) -> Rule | None:
    """Return the rule that merges the rows of a method; None if the method has one row."""
    if method == "cad":
        return Rule("mean", alpha, eta=0, top_p=1)
    return next((rule._replace(pool=pool) for pool in POOLS if pool == method), None)


def _best(reader: ContextReader, asked: Sequence[AskedPrompt], search: Callable[..., list[Answer]]) -> list[Reply]:
    """Answer each prompt from each context alone and return the likeliest answer, the first on ties."""
    lines = [line for line, one in enumerate(asked) for _ in one.rows]
    found = search([[row] for one in asked for row in one.rows], None, lines=lines)
    replies = []
    for one, each in zip(asked, _by_prompt(asked, found), strict=True):
        scores = tuple(a.hypotheses[0].score if a.hypotheses else -math.inf for a in each)
        at = scores.index(max(scores))
        replies.append(reply_of(reader, each[at], one.answered_by(at, scores)))
    return replies


def _choose(
    reader: ContextReader, method: str, asked: AskedPrompt, choices: Mapping[str, Sequence[int]], merging: Rule | None
) -> Reply:
    """Return the choice whose tokens, without an end token, have the highest log-probability after the prompt.

    The scores of each row are normalized over the choices, and pools merge these distributions: `entropy` selects the
    context with the lowest entropy over the choices. `top_p` and `eta` have no effect.
    """
    if merging is not None:
        merging = merging._replace(eta=0, top_p=1).check(len(asked.rows) - 1)
    reader.check(asked.rows, max(map(len, choices.values())))
    pool = method in POOLS
    scores, prompt = label_logprobs(reader, asked.rows, [*choices.values()], scored=pool)
    if method == "best":
        at = int(scores.amax(1).argmax())
        asked, scores = asked.answered_by(at, ()), scores[at : at + 1]
    if merging is None:
        logprobs = scores[0].log_softmax(-1)
    else:
        none = torch.tensor([-1], device=scores.device)
        logprobs = merge_rows(scores[None], merging, none).logprobs[0]
    best = int(logprobs.argmax())
    source = None
    if pool:
        parts = scores[1:].log_softmax(-1)[:, best].tolist()
        source = named_source(len(parts), [parts], prompt)
        asked = asked._replace(context=source.context)
    probabilities = dict(zip(choices, logprobs.exp().tolist(), strict=True))
    text = [*choices][best]
    return Reply(text, [], [], asked.context, (), asked.cut, source, probabilities)


def rows_of(
    reader: ContextReader, method: str, contexts: Sequence[str], prompt: str, output: int, limit: int | None
) -> tuple[list[PromptRow], str]:
    """Return the rows of a prompt for `method`, and the sentence of `Reply.cut`."""
    if method in ("best", "retrieval"):
        return [reader.row(text, prompt) for text in contexts], ""
    if method == "none":
        return [reader.row("", prompt)], ""
    if method == "window":
        return [side_by_side(reader, contexts, prompt)], ""
    if method in POOLS:
        return [reader.row(text, prompt) for text in ("", *contexts)], ""
    row, cut = concatenated(reader, contexts, prompt, output, limit=limit)
    return [row] if method == "concat" else [reader.row("", prompt), row], cut


def check_method(reader: ContextReader, method: str) -> None:
    """Raise UsageError if the method is unknown or not supported by the model."""
    if method not in METHODS:
        raise UsageError(f"method {method!r} is not known: {hint(method, METHODS)}")
    if why := refusal(reader, method):
        raise UsageError(f"method {method} does not work with {reader.name}: {why}; choose another method")


def refusal(reader: ContextReader, method: str) -> str:
    """Return the reason why the model does not support a method; "" if it does."""
    if method == "retrieval" and not isinstance(reader, CausalReader):
        return "an encoder-decoder reads the prompt in its source and gives it no probability"
    return reader.window_refusal if method == "window" else ""
