"""One question to many contexts, by any method: what the command, evaluation and tables call."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, NamedTuple, cast, get_args

from attnkit.errors import UsageError
from attnkit.nbce import baselines
from attnkit.nbce.baselines import Cut
from attnkit.nbce.merge import POOLS, Pool, Rule
from attnkit.nbce.merged_search import Answer, Emit, MergedStep, answers
from attnkit.nbce.reader import BATCH_TOKENS, ContextReader, PromptRow
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import Hypothesis
from attnkit.text import nearest

Baseline = Literal["concat", "window", "cad", "best", "retrieval", "none"]
BASELINES: tuple[str, ...] = get_args(Baseline)
METHODS = POOLS + BASELINES


class Reply(NamedTuple):
    """What a method answers to one prompt."""

    text: str
    """Of the best hypothesis; "" where there is none."""
    hypotheses: list[Hypothesis]
    """Best first; ids are the reader's."""
    steps: list[MergedStep]
    """Of the best hypothesis, where contexts were merged and the call was traced."""
    context: int | None
    """The context that answered, from 0: the one chosen, or with pool entropy the one that spoke
    most (known when traced); None where contexts are mixed."""
    scores: tuple[float, ...]
    """What contexts were chosen by: the score of each answer (best, higher is better), perplexity
    of the prompt under each (retrieval, lower is better); else empty."""
    notes: tuple[str, ...]
    """What the reader of the answer should know, such as what was cut."""


class AnswerSettings(NamedTuple):
    """What `ask` was told, for the methods."""

    reader: ContextReader
    spec: SearchConfig
    rule: Rule
    alpha: float
    limit: int | None
    cut: Cut
    traced: bool
    emit: Emit | None
    budget: int


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
    cut: Cut = "end",
    traced: bool = False,
    emit: Emit | None = None,
    budget: int = BATCH_TOKENS,
) -> list[Reply]:
    """Answer each prompt from its contexts.

    Methods: a pool of `merge.POOLS` merges all contexts at each token; `concat` reads them in one
    row; `window` lets the prompt see them side by side (Ratner et al. 2023); `cad` contrasts the
    concatenation with no context (Shi et al. 2024); `best` asks them one by one and takes the
    likeliest answer; `retrieval` asks the one under which the prompt is least surprising; `none`
    asks without context.

    Args:
        reader: the model.
        method: one of `METHODS`.
        contexts: of each prompt; their numbers may differ.
        prompts: as many.
        spec: greedy, beam or sampling and its limits; `batch_tokens` bounds the rows x tokens that
            are kept at once (one prompt is always read whole).
        rule: for pools; its pool is the method's.
        alpha: of cad: (1 + alpha) log p(T|S) - alpha log p(T).
        limit: most tokens of the row of concat and cad, output included; None: the model's own.
        cut: the end of the concatenation that goes where it is too long.
        traced: record which context spoke at each token.
        emit: is given each token of the answer as it comes (of `best`, all at the end); for one
            prompt and one hypothesis.  The last token may be missing where no end token follows.
        budget: tokens read in one pass.

    Raises:
        UsageError: the method is not known or not for this model, a prompt is empty or has no
            context, a row is too long, or the rule is out of range.
        DataError: the model answers NaN.
    """
    _check(method, contexts, prompts)
    if emit is not None and len(prompts) > 1:
        raise ValueError("tokens can be handed out for one prompt only")
    settings = AnswerSettings(reader, spec, rule, alpha, limit, cut, traced, emit, budget)
    found: list[Reply | None] = [None] * len(prompts)
    run = _method(method)
    for group in _groups(method, contexts):
        asked = [(contexts[line], prompts[line]) for line in group]
        for line, reply in zip(group, run(settings, asked, group), strict=True):
            found[line] = reply
    return [reply for reply in found if reply is not None]


def _check(method: str, contexts: Sequence[Sequence[str]], prompts: Sequence[str]) -> None:
    """Refuse a method that is not known, and prompts without context."""
    if method not in METHODS:
        close = nearest(method, METHODS)
        hint = f"; did you mean {close!r}?" if close else f": choose from {', '.join(METHODS)}"
        raise UsageError(f"method {method!r} is not known{hint}")
    if len(contexts) != len(prompts):
        raise UsageError(f"{len(contexts)} sets of contexts for {len(prompts)} prompts")
    for number, some in enumerate(contexts, 1):
        if not some and method != "none":
            raise UsageError(
                f"prompt {number} has no context: give it one, or choose the method none"
            )


Asked = Sequence[tuple[Sequence[str], str]]
"""Contexts and prompt of some lines."""
Method = Callable[[AnswerSettings, Asked, Sequence[int]], list[Reply]]


def _method(name: str) -> Method:
    """What answers prompts with equally many contexts."""
    if name in POOLS:
        return partial(_pool, pool=cast(Pool, name))
    return {
        "concat": _concat,
        "window": _window,
        "cad": _cad,
        "best": _best,
        "retrieval": _retrieval,
        "none": _none,
    }[name]


def _groups(method: str, contexts: Sequence[Sequence[str]]) -> list[list[int]]:
    """Prompts that can be asked in one batch, which needs as many rows of each."""
    if method in ("none", "concat", "cad"):
        return [list(range(len(contexts)))] if contexts else []
    groups: dict[int, list[int]] = {}
    for line, some in enumerate(contexts):
        groups.setdefault(len(some), []).append(line)
    return list(groups.values())


def _pool(
    settings: AnswerSettings, asked: Asked, lines: Sequence[int], *, pool: Pool
) -> list[Reply]:
    """Contexts merged at each token."""
    reader = settings.reader
    rows = [[reader.row(text, prompt) for text in ("", *some)] for some, prompt in asked]
    found = _run(settings, rows, lines, settings.rule._replace(pool=pool))
    return [_reply(reader, one, context=_speaker(one.steps)) for one in found]


def _speaker(steps: Sequence[MergedStep]) -> int | None:
    """The context that spoke most, of several the first to speak."""
    spoke = Counter(step.chosen for step in steps if step.chosen is not None)
    return spoke.most_common(1)[0][0] if spoke else None


def _none(settings: AnswerSettings, asked: Asked, lines: Sequence[int]) -> list[Reply]:
    """The prompt alone."""
    rows = [[settings.reader.row("", prompt)] for _, prompt in asked]
    return [_reply(settings.reader, one) for one in _run(settings, rows, lines, None)]


def _joined(settings: AnswerSettings, asked: Asked) -> tuple[list[PromptRow], list[str]]:
    """Of each prompt the row of all contexts, and what was cut."""
    chosen = settings
    pairs = [
        baselines.concatenated(
            chosen.reader, some, prompt, chosen.spec.max_length, limit=chosen.limit, cut=chosen.cut
        )
        for some, prompt in asked
    ]
    return [row for row, _ in pairs], [note for _, note in pairs]


def _concat(settings: AnswerSettings, asked: Asked, lines: Sequence[int]) -> list[Reply]:
    """All contexts in one row."""
    rows, notes = _joined(settings, asked)
    found = _run(settings, [[row] for row in rows], lines, None)
    return [_reply(settings.reader, *pair) for pair in zip(found, notes, strict=True)]


def _cad(settings: AnswerSettings, asked: Asked, lines: Sequence[int]) -> list[Reply]:
    """The concatenation against no context at all."""
    rows, notes = _joined(settings, asked)
    alone = [settings.reader.row("", prompt) for _, prompt in asked]
    rule = Rule("mean", settings.alpha, eta=0, top_p=1, top_k=0)
    found = _run(settings, [list(pair) for pair in zip(alone, rows, strict=True)], lines, rule)
    return [_reply(settings.reader, one, note=note) for one, note in zip(found, notes, strict=True)]


def _window(settings: AnswerSettings, asked: Asked, lines: Sequence[int]) -> list[Reply]:
    """Contexts side by side under one prompt."""
    reader = settings.reader
    rows = [[baselines.side_by_side(reader, some, prompt)] for some, prompt in asked]
    return [_reply(reader, one) for one in _run(settings, rows, lines, None)]


def _best(settings: AnswerSettings, asked: Asked, lines: Sequence[int]) -> list[Reply]:
    """Each context asked alone; the likeliest answer, of equal ones the first."""
    reader, count = settings.reader, len(asked[0][0])
    rows = [[reader.row(text, prompt)] for some, prompt in asked for text in some]
    numbers = [line for line in lines for _ in range(count)]
    every = _run(settings._replace(emit=None), rows, numbers, None)
    replies = []
    for place in range(0, len(every), count):
        scores = tuple(
            one.hypotheses[0].score if one.hypotheses else float("-inf")
            for one in every[place : place + count]
        )
        chosen = max(range(count), key=lambda number: scores[number])
        answer = every[place + chosen]
        replies.append(_reply(reader, answer, context=chosen, scores=scores))
    if settings.emit is not None:
        for token in replies[0].hypotheses[0].ids if replies[0].hypotheses else ():
            settings.emit(token)
    return replies


def _retrieval(settings: AnswerSettings, asked: Asked, lines: Sequence[int]) -> list[Reply]:
    """The context that makes the prompt least surprising, asked alone."""
    reader, count = settings.reader, len(asked[0][0])
    rows = [reader.row(text, prompt) for some, prompt in asked for text in some]
    every = baselines.surprises(reader, rows, settings.budget)
    scores = [tuple(every[place : place + count]) for place in range(0, len(every), count)]
    chosen = [min(range(count), key=lambda number: row[number]) for row in scores]
    kept = [[rows[place * count + number]] for place, number in enumerate(chosen)]
    found = _run(settings, kept, lines, None)
    return [
        _reply(reader, one, context=number, scores=told)
        for one, number, told in zip(found, chosen, scores, strict=True)
    ]


def _run(
    settings: AnswerSettings,
    prompts: Sequence[Sequence[PromptRow]],
    lines: Sequence[int],
    rule: Rule | None,
) -> list[Answer]:
    """`answers`, some prompts at a time."""
    spec, found = settings.spec, list[Answer]()
    for some in _batches(prompts, spec):
        found += answers(
            settings.reader,
            prompts[some],
            rule,
            spec,
            lines=lines[some],
            traced=settings.traced,
            emit=settings.emit,
            budget=settings.budget,
        )
    return found


def _batches(prompts: Sequence[Sequence[PromptRow]], spec: SearchConfig) -> Iterator[slice]:
    """Prompts in turn, as many as may be kept at once with their outputs."""
    beams = {"greedy": 1, "beam": spec.beam, "sample": spec.n_best}[spec.method]
    start, longest = 0, 0
    for end, rows in enumerate(prompts):
        windows = 1 + len(rows[0].beside)
        size = max(row.longest for row in rows) * windows + spec.max_length
        longest = max(longest, size)
        if end > start and (end + 1 - start) * len(rows) * beams * longest > spec.batch_tokens:
            yield slice(start, end)
            start, longest = end, size
    if len(prompts) > start:
        yield slice(start, len(prompts))


def _reply(
    reader: ContextReader,
    answer: Answer,
    note: str = "",
    context: int | None = None,
    scores: tuple[float, ...] = (),
) -> Reply:
    best = answer.hypotheses[0].ids if answer.hypotheses else []
    notes = (note,) if note else ()
    return Reply(reader.decode(best), answer.hypotheses, answer.steps, context, scores, notes)
