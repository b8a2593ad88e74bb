"""Generation and printing of the answers of `attnkit nbce`."""

import json
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import console, output
from attnkit.cli.progress_bar import progress_bar
from attnkit.text import safe_text

if TYPE_CHECKING:
    from attnkit.nbce.answer import Reply
    from attnkit.nbce.contexts import Context
    from attnkit.nbce.merge import Rule
    from attnkit.nbce.reader import ContextReader
    from attnkit.nbce.trace import Trace
    from attnkit.recipe.schema import SearchConfig


class NbceRequest(NamedTuple):
    """Model, contexts and settings of a command."""

    reader: "ContextReader"
    contexts: "Sequence[Context]"
    methods: Sequence[str]
    rule: "Rule"
    spec: "SearchConfig"
    fixed: bool
    """Whether the user set the maximum length of answers."""
    alpha: float
    """Strength of contrast of the method cad."""
    choices: Sequence[str]
    """Answers to score instead of generating text; empty: text is generated."""
    trace: bool
    as_json: bool

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids and strip whitespace."""
        return self.reader.decode(ids).strip()

    def source(self, reply: "Reply") -> str | None:
        """Return the name of the context of an answer, or None."""
        return None if reply.context is None else self.contexts[reply.context].name


class MethodReply(NamedTuple):
    """Answer of one method to one prompt."""

    method: str
    reply: "Reply"
    trace: "Trace | None"
    """Trace of an answer merged from contexts, with --trace."""


def print_answers(request: NbceRequest, prompts: Sequence[str], piped: Iterable[str] | None = None) -> None:
    """Print the answers to all prompts, and warn of truncated answers.

    Answers to `prompts` are computed in one batch, those to `piped` one by one as prompts arrive, with the caches of
    the contexts kept.
    """
    several = len(prompts) > 1 or piped is not None
    request.reader.keep_contexts = piped is not None
    number = truncated = 0  # number of prompts and of truncated answers; a pipe may never end, so no answers are kept
    with progress_bar("rows read") as progress:
        request.reader.progress = partial(progress, "contexts")
        for batch in chain([prompts] if prompts else [], ([prompt] for prompt in piped or ())):
            fitted = _fit_length(request, batch, warns=number == 0)
            columns = [_ask(fitted, method, batch) for method in fitted.methods]
            for prompt, *replies in zip(batch, *columns, strict=True):
                number += 1
                pairs = zip(fitted.methods, replies, strict=True)
                answers = [MethodReply(method, reply, _trace(request, prompt, reply)) for method, reply in pairs]
                if request.as_json:
                    for answer in answers:
                        record = {"prompt": number} | _record(answer, request)
                        console.write(json.dumps(record, ensure_ascii=False) + "\n")
                elif len(answers) > 1:
                    _show_methods(f"{number}: {prompt}" if several else "", answers, request)
                else:
                    _show_text(answers[0], request, several)
                truncated += sum(bool(it.reply.hypotheses) and not it.reply.complete for it in answers)
            sys.stdout.flush()
    if truncated:
        console.warn(f"answers cut at their maximum length: {truncated:,} (--max-length)")


def _fit_length(request: NbceRequest, prompts: Sequence[str], warns: bool) -> NbceRequest:
    """Return the request with the maximum length of answers reduced to what fits beside contexts and prompts."""
    from attnkit.nbce.reader import fit_max_length

    if request.choices or not prompts[0].strip():
        return request
    texts = [context.text for context in request.contexts]
    spec, notes = fit_max_length(request.reader, texts, prompts, request.spec, request.fixed)
    for note in notes if warns else ():
        console.warn(note)
    return request._replace(spec=spec)


def _ask(request: NbceRequest, method: str, prompts: Sequence[str]) -> "list[Reply]":
    """Return the answers of one method; an empty line of a pipe gets an empty answer."""
    from attnkit.nbce.answer import Reply, ask

    if not prompts[0].strip():
        return [Reply("", [], [], None)]
    reader, limit = request.reader, None
    if reader.trained_length is not None:  # as in evaluation, except that a longer prompt raises the limit
        longest = max(reader.row("", text).longest for text in prompts)
        limit = max(reader.trained_length + 1, longest) + request.spec.max_length
    contexts = [context.text for context in request.contexts]
    return ask(
        reader,
        method,
        [contexts] * len(prompts),
        prompts,
        request.spec,
        request.rule,
        alpha=request.alpha,
        limit=limit,
        choices=request.choices,
    )


def _trace(request: NbceRequest, prompt: str, reply: "Reply") -> "Trace | None":
    from attnkit.nbce.trace import trace

    if not (request.trace and reply.steps and reply.source):
        return None
    name, ids = request.reader.name, reply.hypotheses[0].ids
    return trace(name, prompt, request.contexts, request.rule, ids, reply.steps, reply.source, request.decode)


def _show_methods(title: str, answers: Sequence[MethodReply], request: NbceRequest) -> None:
    """Print the answers of several methods to one prompt as a table."""
    from attnkit.show.table import Table

    rows = []
    for method, reply, _ in answers:
        text = reply.text.strip() or "(nothing)"
        if reply.probabilities:
            text += f" ({max(reply.probabilities.values()):.1%})"
        rows.append((method, text, "; ".join(filter(None, (_source_text(reply, request), reply.cut)))))
    if title:
        console.stdout().print(safe_text(title))
    console.stdout().print(Table.of_texts("", ("method", "answer", "from"), rows))
    _show_traces(answers)


def _show_text(answer: MethodReply, request: NbceRequest, several: bool) -> None:
    """Print an answer, as one line if there are several prompts.

    The source of a generated text goes to standard error, so that a pipe gets the text alone.
    """
    reply, text = answer.reply, answer.reply.text.strip()
    text = " ".join(text.split()) if several else text
    console.write((safe_text(text) if sys.stdout.isatty() else text) + "\n")
    if not several:
        for choice, probability in reply.probabilities.items():
            console.write(f"{probability:6.1%} {safe_text(choice)}\n")
        source = _source_text(reply, request)
        if source and reply.probabilities:
            console.write(safe_text(source) + "\n")
        elif source and answer.trace is None:  # a trace ends with the source
            console.say(source)
    _show_traces([answer])
    if reply.cut:
        console.warn(reply.cut)


def _show_traces(answers: Sequence[MethodReply]) -> None:
    for answer in answers:
        if answer.trace is not None:
            from attnkit.show.trace_screen import TraceScreen

            console.stdout().print()
            console.stdout().print(TraceScreen(answer.trace))


def _source_text(reply: "Reply", request: NbceRequest) -> str:
    """Return a text about the context of an answer and its share; "" if neither is known."""
    share = f"{reply.source.share:.0%}" if reply.source else ""
    if reply.context is not None:
        share = f" ({share})" if share else ""
        return f"from context {reply.context + 1}{share}: {request.source(reply)}"
    return f"source unclear (at most {share})" if share else ""


def _record(answer: MethodReply, request: NbceRequest) -> dict[str, Any]:
    """Return an answer as a JSON object, with contexts numbered from 1."""
    reply = answer.reply
    best = reply.hypotheses[0] if reply.hypotheses else None
    fields: dict[str, Any] = {
        "method": answer.method,
        "text": reply.text.strip(),
        "score": None if best is None else output.finite(best.score),
        "tokens": 0 if best is None else len(best.ids),
        "complete": reply.complete,
        "context": None if reply.context is None else reply.context + 1,
        "source": request.source(reply),
        "share": None if reply.source is None else round(reply.source.share, 4),
        "scores": [output.finite(score) for score in reply.scores],
        "notes": [reply.cut] if reply.cut else [],
    }
    if reply.probabilities:
        fields["probabilities"] = {name: round(p, 6) for name, p in reply.probabilities.items()}
    if answer.trace is not None:
        fields["trace"] = answer.trace.json()
    return fields
