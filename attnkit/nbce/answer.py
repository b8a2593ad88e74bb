"""Answers to prompts from many contexts, by any method; called by the command and by evaluation."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

import torch

from attnkit.errors import UsageError
from attnkit.nbce.baselines import concatenate, parallel_windows, prompt_perplexities
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
    """0-based index of the context selected by `best` or `retrieval`, or of the named source of a merged answer;
    None if there is none."""
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


def reply_of(reader: ContextReader, answer: Answer, prompt: "PreparedPrompt") -> Reply:
    """Build the reply from the answer of one row or of merged rows."""
    text = reader.decode(answer.hypotheses[0].ids if answer.hypotheses else [])
    source = None
    if answer.steps:
        # the end token says little about the source: it counts only if the answer has no other token
        ended = len(answer.steps) > len(answer.hypotheses[0].ids) > 0
        logprobs = [step.logprobs for step in (answer.steps[:-1] if ended else answer.steps)]
        source = named_source(len(answer.steps[0].entropies), logprobs, answer.prompt)
    context = source.context if source else prompt.context
    return Reply(text, answer.hypotheses, answer.steps, context, prompt.scores, prompt.cut, source=source)


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
        raise UsageError(f"prompt {number} has no context: add a context, or use method none")
    labels = encode_choices(reader, choices) if choices else {}
    output = max(map(len, labels.values()), default=spec.max_length)
    pairs = zip(contexts, prompts, strict=True)
    prepared = [prepare_prompt(reader, method, *pair, output, limit) for pair in pairs]
    if method == "retrieval":
        values = prompt_perplexities(reader, [row for prompt in prepared for row in prompt.rows])
        perplexities = _by_prompt(prepared, values)
        prepared = [p.select(x.index(min(x)), x) for p, x in zip(prepared, perplexities, strict=True)]
    merging = _merging_rule(method, rule, alpha)
    if labels:
        return [_choose(reader, method, prompt, labels, merging) for prompt in prepared]
    search = partial(answers, reader, spec=spec)
    if method == "best":
        return _best(reader, prepared, search)
    results = search([prompt.rows for prompt in prepared], merging)
    if method not in POOLS:  # the rows of cad are not contexts
        results = [answer._replace(steps=[]) for answer in results]
    return [reply_of(reader, *pair) for pair in zip(results, prepared, strict=True)]


class PreparedPrompt(NamedTuple):
    """Rows from which a prompt is answered; the other fields are as in `Reply`."""

    rows: Sequence[PromptRow]
    cut: str = ""
    context: int | None = None
    scores: tuple[float, ...] = ()

    def select(self, context: int, scores: tuple[float, ...]) -> "PreparedPrompt":
        """Return a copy with only the row of `context`, which was selected by `scores`."""
        return PreparedPrompt([self.rows[context]], self.cut, context, scores)


def _by_prompt(prompts: Sequence[PreparedPrompt], values: Iterable[T]) -> list[tuple[T, ...]]:
    """Group the values of all rows by prompt."""
    remaining = iter(values)
    return [tuple(islice(remaining, len(prompt.rows))) for prompt in prompts]


def _merging_rule(method: str, rule: Rule, alpha: float) -> Rule | None:
    """Return the rule that merges the rows of a method; None if the method has one row."""
    if method == "cad":
        return Rule("mean", alpha, eta=0, top_p=1)
    return next((rule._replace(pool=pool) for pool in POOLS if pool == method), None)


def _best(
    reader: ContextReader, prompts: Sequence[PreparedPrompt], search: Callable[..., list[Answer]]
) -> list[Reply]:
    """Answer each prompt from each context alone and return the likeliest answer, the first on ties."""
    lines = [line for line, prompt in enumerate(prompts) for _ in prompt.rows]
    results = search([[row] for prompt in prompts for row in prompt.rows], None, lines=lines)
    replies = []
    for prompt, candidates in zip(prompts, _by_prompt(prompts, results), strict=True):
        scores = tuple(answer.hypotheses[0].score if answer.hypotheses else -math.inf for answer in candidates)
        best = scores.index(max(scores))
        replies.append(reply_of(reader, candidates[best], prompt.select(best, scores)))
    return replies


def _choose(
    reader: ContextReader,
    method: str,
    prompt: PreparedPrompt,
    choices: Mapping[str, Sequence[int]],
    merging: Rule | None,
) -> Reply:
    """Return the choice whose tokens, without an end token, have the highest log-probability after the prompt.

    The scores of each row are normalized over the choices, and pools merge these distributions: `entropy` selects the
    context with the lowest entropy over the choices. `top_p` and `eta` have no effect.
    """
    if merging is not None:
        merging = merging._replace(eta=0, top_p=1).check(len(prompt.rows) - 1)
    reader.check(prompt.rows, max(map(len, choices.values())))
    pool = method in POOLS
    scores, prompt_logprobs = label_logprobs(reader, prompt.rows, [*choices.values()], scored=pool)
    if method == "best":
        context = int(scores.amax(1).argmax())
        prompt, scores = prompt.select(context, ()), scores[context : context + 1]
    if merging is None:
        logprobs = scores[0].log_softmax(-1)
    else:
        previous = torch.tensor([-1], device=scores.device)
        logprobs = merge_rows(scores[None], merging, previous).logprobs[0]
    best = int(logprobs.argmax())
    source = None
    if pool:
        by_context = scores[1:].log_softmax(-1)[:, best].tolist()
        source = named_source(len(by_context), [by_context], prompt_logprobs)
        prompt = prompt._replace(context=source.context)
    probabilities = dict(zip(choices, logprobs.exp().tolist(), strict=True))
    return Reply([*choices][best], [], [], prompt.context, (), prompt.cut, source, probabilities)


def prepare_prompt(
    reader: ContextReader, method: str, contexts: Sequence[str], prompt: str, output: int, limit: int | None
) -> PreparedPrompt:
    """Build the rows of a prompt for `method`, with room for `output` tokens."""
    if method in ("best", "retrieval"):
        return PreparedPrompt([reader.row(text, prompt) for text in contexts])
    if method == "none":
        return PreparedPrompt([reader.row("", prompt)])
    if method == "window":
        return PreparedPrompt([parallel_windows(reader, contexts, prompt)])
    if method in POOLS:
        return PreparedPrompt([reader.row(text, prompt) for text in ("", *contexts)])
    row, cut = concatenate(reader, contexts, prompt, output, limit=limit)
    return PreparedPrompt([row] if method == "concat" else [reader.row("", prompt), row], cut)


def check_method(reader: ContextReader, method: str) -> None:
    """Raise UsageError if the method is unknown or not supported by the model."""
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}: {hint(method, METHODS)}")
    if reason := refusal(reader, method):
        raise UsageError(f"method {method} does not work with {reader.name}: {reason}; choose another method")


def refusal(reader: ContextReader, method: str) -> str:
    """Return the reason why the model does not support a method; "" if it does."""
    if method == "retrieval" and not isinstance(reader, CausalReader):
        return "an encoder-decoder reads the prompt in its source, so the prompt has no probability"
    return reader.window_refusal if method == "window" else ""
