"""Prompts answered from many contexts by any method: what the command and evaluation call."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple, get_args

from attnkit.errors import UsageError
from attnkit.nbce.baselines import Cut, concatenated, prompt_perplexities, side_by_side
from attnkit.nbce.merge import POOLS, Rule, unknown
from attnkit.nbce.merged_search import Answer, Emit, MergedStep, answers
from attnkit.nbce.reader import CausalReader, ContextReader, PromptRow
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import Hypothesis

Baseline = Literal["concat", "window", "cad", "best", "retrieval", "none"]
BASELINES: tuple[str, ...] = get_args(Baseline)
METHODS = POOLS + BASELINES

Pairs = Sequence[tuple[Sequence[str], str]]
"""Contexts and prompt."""
Search = Callable[..., list[Answer]]
"""`_search` with its reader and settings: of rows, with `rule`, `lines` and `emit`."""


class Reply(NamedTuple):
    """What a method answers to one prompt."""

    text: str
    """Of the best hypothesis; "" where there is none."""
    hypotheses: list[Hypothesis]
    """Best first; ids are the reader's."""
    steps: list[MergedStep]
    """Of the best hypothesis, where contexts were merged and the call was traced."""
    context: int | None
    """The context that answered, from 0: the one chosen, or with pool entropy the one selected most
    often (known when traced); None where contexts are mixed."""
    scores: tuple[float, ...]
    """What contexts were chosen by: the score of each answer (best, higher is better), perplexity
    of the prompt under each (retrieval, lower is better); else empty."""
    notes: tuple[str, ...]
    """What was cut off the contexts, a sentence each."""


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
) -> list[Reply]:
    """Answer each prompt from its contexts.

    Methods: a pool of `merge.POOLS` merges all contexts at each token; `concat` reads them in one
    row; `window` lets the prompt see them side by side (Ratner et al. 2023); `cad` contrasts the
    concatenation with no context (Shi et al. 2024); `best` answers from each context alone and
    takes the likeliest answer; `retrieval` answers from the one under which the prompt is least
    surprising; `none` answers without context.

    Args:
        reader: the model.
        method: one of `METHODS`.
        contexts: of each prompt; their numbers may differ.
        prompts: as many.
        spec: greedy, beam or sampling and its limits; `batch_tokens` bounds the rows x tokens that
            are cached at once (one prompt is always read whole).
        rule: for pools; its pool is the method's.
        alpha: of cad: (1 + alpha) log p(T|S) - alpha log p(T).
        limit: most tokens of the row of concat and cad, output included; None: the model's own.
        cut: the end of the concatenation that is cut off where it is too long.
        traced: record what each context contributed to each token.
        emit: is given each token of the answer as it comes (of `best`, all at the end); for one
            prompt and one hypothesis.  The last token may be missing where no end token follows.

    Raises:
        UsageError: the method is not known or not for this model, a prompt is empty or has no
            context, a row is too long, or the rule is out of range.
        DataError: the model answers NaN.
    """
    check_method(reader, method)
    _check(method, contexts, prompts)
    if emit is not None and len(prompts) > 1:
        raise ValueError("tokens can be handed out for one prompt only")
    search = partial(_search, reader, spec=spec, traced=traced)
    pairs = list(zip(contexts, prompts, strict=True))
    if method == "best":
        return _best(reader, pairs, search, emit)
    search = partial(search, emit=emit)
    if method == "retrieval":
        return _retrieval(reader, pairs, search)
    join = partial(concatenated, reader, output=spec.max_length, limit=limit, cut=cut)
    read = [_rows(reader, method, some, prompt, join) for some, prompt in pairs]
    merging = Rule("mean", alpha, eta=0, top_p=1) if method == "cad" else None
    if method in POOLS:
        merging = rule._replace(pool=method)
    found = search([rows for rows, _ in read], rule=merging)
    return [_reply(reader, one, note=note) for one, (_, note) in zip(found, read, strict=True)]


def check_method(reader: ContextReader, method: str) -> None:
    """Raise UsageError for a method that is not known, or that the model cannot follow."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    why = reader.window_refusal if method == "window" else ""
    if method == "retrieval" and not isinstance(reader, CausalReader):
        why = "an encoder-decoder reads the prompt in its source and gives it no probability"
    if why:
        raise UsageError(
            f"method {method} does not work with {reader.name}: {why}; choose another method"
        )


def _check(method: str, contexts: Sequence[Sequence[str]], prompts: Sequence[str]) -> None:
    """Refuse prompts without context."""
    if len(contexts) != len(prompts):
        raise UsageError(f"got {len(contexts)} sets of contexts for {len(prompts)} prompts")
    for number, some in enumerate(contexts, 1):
        if not some and method != "none":
            raise UsageError(
                f"prompt {number} has no context: give it one, or choose the method none"
            )


def _rows(
    reader: ContextReader,
    method: str,
    contexts: Sequence[str],
    prompt: str,
    join: Callable[[Sequence[str], str], tuple[PromptRow, str]],
) -> tuple[list[PromptRow], str]:
    """The rows that are merged, or the one row that is continued; and a note on what was cut."""
    if method == "none":
        return [reader.row("", prompt)], ""
    if method == "window":
        return [side_by_side(reader, contexts, prompt)], ""
    if method in POOLS:
        return [reader.row(text, prompt) for text in ("", *contexts)], ""
    row, note = join(contexts, prompt)
    return [row] if method == "concat" else [reader.row("", prompt), row], note


def _best(reader: ContextReader, pairs: Pairs, search: Search, emit: Emit | None) -> list[Reply]:
    """Each context alone; the likeliest answer, of equal ones the first."""
    rows = [[reader.row(text, prompt)] for some, prompt in pairs for text in some]
    lines = [line for line, (some, _) in enumerate(pairs) for _ in some]
    found = iter(search(rows, lines=lines))
    replies = []
    for some, _ in pairs:
        every = list(islice(found, len(some)))
        scores = [one.hypotheses[0].score if one.hypotheses else -math.inf for one in every]
        chosen = scores.index(max(scores))
        replies.append(_reply(reader, every[chosen], chosen, scores))
    if emit is not None and replies[0].hypotheses:
        for token in replies[0].hypotheses[0].ids:
            emit(token)
    return replies


def _retrieval(reader: ContextReader, pairs: Pairs, search: Search) -> list[Reply]:
    """The context that makes the prompt least surprising, alone."""
    rows = [[reader.row(text, prompt) for text in some] for some, prompt in pairs]
    found = iter(prompt_perplexities(reader, [row for some in rows for row in some]))
    scores = [list(islice(found, len(some))) for some in rows]
    chosen = [some.index(min(some)) for some in scores]
    replies = search([[some[place]] for some, place in zip(rows, chosen, strict=True)])
    return [_reply(reader, *one) for one in zip(replies, chosen, scores, strict=True)]


def _search(
    reader: ContextReader,
    prompts: Sequence[Sequence[PromptRow]],
    *,
    spec: SearchConfig,
    traced: bool,
    rule: Rule | None = None,
    lines: Sequence[int] | None = None,
    emit: Emit | None = None,
) -> list[Answer]:
    """`answers` of prompts that may have different numbers of rows, some at a time."""
    numbers = range(len(prompts)) if lines is None else lines
    found: dict[int, Answer] = {}
    for some in _batches(prompts, spec):
        batch, lines = [prompts[place] for place in some], [numbers[place] for place in some]
        replies = answers(reader, batch, rule, spec, lines=lines, traced=traced, emit=emit)
        found.update(zip(some, replies, strict=True))
    return [found[place] for place in range(len(prompts))]


def _batches(prompts: Sequence[Sequence[PromptRow]], spec: SearchConfig) -> Iterator[list[int]]:
    """Prompts with equally many rows, as many as may be cached at once with their outputs."""
    beams = {"greedy": 1, "beam": spec.beam, "sample": spec.n_best}[spec.method]
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, rows in enumerate(prompts):
        groups[len(rows), 1 + len(rows[0].beside)].append(place)
    for (count, windows), places in groups.items():
        batch: list[int] = []
        longest = 0
        for place in places:
            size = max(row.longest for row in prompts[place]) * windows + spec.max_length
            longest = max(longest, size)
            if batch and (len(batch) + 1) * count * beams * longest > spec.batch_tokens:
                yield batch
                batch, longest = [], size
            batch.append(place)
        yield batch


def _reply(
    reader: ContextReader,
    answer: Answer,
    context: int | None = None,
    scores: Sequence[float] = (),
    note: str = "",
) -> Reply:
    """`context` None: the one that was selected most often, of several the first."""
    text = reader.decode(answer.hypotheses[0].ids if answer.hypotheses else [])
    counts = Counter(step.chosen for step in answer.steps if step.chosen is not None)
    if context is None and counts:
        context = counts.most_common(1)[0][0]
    notes = (note,) if note else ()
    return Reply(text, answer.hypotheses, answer.steps, context, tuple(scores), notes)
