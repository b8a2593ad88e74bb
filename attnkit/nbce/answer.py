"""Prompts answered from many contexts by any method: what the command and evaluation call."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from attnkit.errors import UsageError
from attnkit.nbce.baselines import concatenated, prompt_perplexities, side_by_side
from attnkit.nbce.merge import POOLS, Rule, unknown
from attnkit.nbce.merged_search import Answer, Emit, TracedToken, answers
from attnkit.nbce.reader import CausalReader, ContextReader, PromptRow
from attnkit.nbce.sources import Source, named_source
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import Hypothesis

BASELINES = ("concat", "window", "cad", "best", "retrieval", "none")
METHODS = POOLS + BASELINES


class Reply(NamedTuple):
    """What a method answers to one prompt."""

    text: str
    """Of the best hypothesis; "" where there is none."""
    hypotheses: list[Hypothesis]
    """Best first; ids are the reader's."""
    steps: list[TracedToken]
    """Of the best hypothesis, where contexts were merged."""
    context: int | None
    """The context that answered, from 0: the one chosen (best, retrieval), or the named source of
    merged ones; None where there is none."""
    scores: tuple[float, ...] = ()
    """What contexts were chosen by: the score of each answer (best, higher is better), perplexity
    of the prompt under each (retrieval, lower is better); else empty."""
    cut: str = ""
    """A sentence on what was cut off the contexts; "": nothing."""
    source: Source | None = None
    """How the contexts share in a merged answer."""
    probabilities: Mapping[str, float] = {}
    """Of choices, with sum 1, where one was chosen; the text is the likeliest."""

    @property
    def complete(self) -> bool:
        """Whether there is an answer that was not cut at its maximum length."""
        return bool(self.hypotheses) and self.hypotheses[0].complete


def reply_of(reader: ContextReader, answer: Answer, cut: str = "") -> Reply:
    """The reply of one row, or of merged ones."""
    text = reader.decode(answer.hypotheses[0].ids if answer.hypotheses else [])
    source = None
    if answer.steps:
        # the end of a text says little of its source: it counts where there is nothing else
        ended = len(answer.steps) > len(answer.hypotheses[0].ids) > 0
        told = [step.logprobs for step in (answer.steps[:-1] if ended else answer.steps)]
        source = named_source(len(answer.steps[0].entropies), told, answer.prompt)
    context = source.context if source else None
    return Reply(text, answer.hypotheses, answer.steps, context, cut=cut, source=source)


def ask(
    reader: ContextReader,
    method: str,
    contexts: Sequence[Sequence[str]],
    prompts: Sequence[str],
    spec: SearchConfig,
    rule: Rule = Rule(),  # noqa: B008 (immutable)
    *,
    alpha: float = 0.5,
    limit: int | None = None,
    emit: Emit | None = None,
) -> list[Reply]:
    """Answer each prompt from its contexts.

    Methods: a pool of `merge.POOLS` merges all contexts at each token; `concat` reads them in one
    row; `window` lets the prompt see them side by side (Ratner et al. 2023); `cad` contrasts the
    concatenation with no context (Shi et al. 2024); `best` answers from each context alone and
    takes the likeliest answer; `retrieval` answers from the one under which the prompt is least
    surprising; `none` answers without context.

    `spec.batch_tokens` bounds the rows x tokens that are cached at once (one prompt is always read
    whole); `rule` is for pools, its pool the method's; `alpha` of cad: (1 + alpha) log p(T|S) -
    alpha log p(T); `limit` is most tokens of the row of concat and cad, output included (None: the
    model's own).  `emit` is given each token of the answer as it comes (of `best`, all at the end),
    for one prompt and one hypothesis (the last may be missing where no end token follows).

    Raises:
        UsageError: the method is not known or not for this model, a prompt is empty or has no
            context, a row is too long, or the rule is out of range.
        DataError: the model answers NaN.
    """
    check_method(reader, method)
    pairs = context_pairs(method, contexts, prompts)
    if emit is not None and len(prompts) > 1:
        raise ValueError("tokens can be handed out for one prompt only")
    search = partial(answers, reader, spec=spec)
    if method in ("best", "retrieval"):
        return _choose(reader, method, pairs, search, emit)
    read = [rows_of(reader, method, *pair, spec.max_length, limit) for pair in pairs]
    merging = merging_rule(method, rule, alpha)
    found = search([rows for rows, _ in read], merging, emit=emit)
    if method not in POOLS:  # the concatenation of cad is no context among others
        found = [one._replace(steps=[]) for one in found]
    return [reply_of(reader, one, cut) for one, (_, cut) in zip(found, read, strict=True)]


def context_pairs(
    method: str, contexts: Sequence[Sequence[str]], prompts: Sequence[str]
) -> list[tuple[Sequence[str], str]]:
    """The contexts of each prompt, and the prompt; UsageError where one that is needed lacks."""
    if len(contexts) != len(prompts):
        raise UsageError(f"got {len(contexts)} sets of contexts for {len(prompts)} prompts")
    for number, some in enumerate(contexts, 1):
        if not some and method != "none":
            raise UsageError(
                f"prompt {number} has no context: give it one, or choose the method none"
            )
    return list(zip(contexts, prompts, strict=True))


def merging_rule(method: str, rule: Rule, alpha: float) -> Rule | None:
    """How the rows of a method are merged; None where it has one row."""
    if method == "cad":
        return Rule("mean", alpha, eta=0, top_p=1)
    return next((rule._replace(pool=pool) for pool in POOLS if pool == method), None)


def rows_of(
    reader: ContextReader,
    method: str,
    contexts: Sequence[str],
    prompt: str,
    output: int,
    limit: int | None,
) -> tuple[list[PromptRow], str]:
    """The rows that are merged or chosen from, or the one that is continued; what was cut off."""
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


def _choose(
    reader: ContextReader,
    method: str,
    pairs: Sequence[tuple[Sequence[str], str]],
    search: Callable[..., list[Answer]],
    emit: Emit | None,
) -> list[Reply]:
    """One context answers: that of the likeliest answer, or of the least surprising prompt.

    Of equal ones the first.
    """
    each = [rows_of(reader, method, *pair, 0, None)[0] for pair in pairs]
    rows = [row for some in each for row in some]
    if method == "retrieval":
        values = iter(prompt_perplexities(reader, rows))
        scores = [list(islice(values, len(some))) for some in each]
        chosen = [some.index(min(some)) for some in scores]
        rows_of_chosen = [[some[at]] for some, at in zip(each, chosen, strict=True)]
        found = search(rows_of_chosen, None, emit=emit)
    else:
        lines = [line for line, some in enumerate(each) for _ in some]
        alone = iter(search([[row] for row in rows], None, lines=lines))
        all_of = [list(islice(alone, len(some))) for some in each]
        scores = [
            [one.hypotheses[0].score if one.hypotheses else -math.inf for one in some]
            for some in all_of
        ]
        chosen = [some.index(max(some)) for some in scores]
        found = [some[at] for some, at in zip(all_of, chosen, strict=True)]
        if emit is not None and found[0].hypotheses:
            for token in found[0].hypotheses[0].ids:
                emit(token)
    return [
        reply_of(reader, one)._replace(context=at, scores=tuple(some))
        for one, at, some in zip(found, chosen, scores, strict=True)
    ]


def check_method(reader: ContextReader, method: str) -> None:
    """Raise UsageError for a method that is not known, or that the model cannot follow."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if why := refusal(reader, method):
        raise UsageError(
            f"method {method} does not work with {reader.name}: {why}; choose another method"
        )


def refusal(reader: ContextReader, method: str) -> str:
    """Why a model cannot follow a method; "" where it can."""
    if method == "retrieval" and not isinstance(reader, CausalReader):
        return "an encoder-decoder reads the prompt in its source and gives it no probability"
    return reader.window_refusal if method == "window" else ""
