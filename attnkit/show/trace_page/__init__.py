"""Traces as one HTML file: choose a token to see the passage that it came from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.errors import UsageError
from attnkit.show.html_document import document
from attnkit.show.trace_screen import context_marks, headline, notes
from attnkit.text import safe_text

if TYPE_CHECKING:
    from attnkit.nbce.merged_search import TracedToken
    from attnkit.nbce.trace import Trace

SUREST = 5  # contexts of a token that the page knows the entropies of; JSON has all


def page(traces: "Sequence[Trace]") -> bytes:
    """The page of some traces; the same ones give the same bytes.

    Raises:
        UsageError: there is none.
    """
    if not traces:
        raise UsageError("no trace to show: an answer of merged contexts is needed")
    models = ", ".join(dict.fromkeys(trace.model for trace in traces))
    return document(
        Path(__file__).parent,
        f"Answer and sources: {models}",
        {"traces": [_record(trace) for trace in traces]},
        scripts=("../frame.js", "page.js"),
    )


def _record(trace: "Trace") -> dict[str, Any]:
    shares = trace.source.shares
    mean = trace.entropies() if trace.tokens else [0.0] * len(trace.contexts)
    marks = context_marks(trace)
    silent = [at for at in range(len(trace.contexts)) if at not in marks]
    silent.sort(key=lambda at: (-shares[at], mean[at]))
    return {
        "model": safe_text(trace.model),
        "prompt": safe_text(trace.prompt),
        "how": headline(trace),
        "notes": list(notes(trace)),
        "voiced": trace.selects_contexts,
        "source": trace.source.leading,
        "marks": {context: {"letter": mark.letter, "colour": mark.colour} for context, mark in marks.items()},
        "listed": sorted([*marks, *silent], key=lambda at: at != trace.source.leading),
        "contexts": [
            {
                "name": safe_text(passage.name),
                "text": safe_text(passage.text),
                "share": round(share, 4),
                "entropy": round(entropy, 4),
            }
            for passage, share, entropy in zip(trace.contexts, shares, mean, strict=True)
        ],
        "tokens": [_token(trace, token) for token in trace.tokens],
    }


def _token(trace: "Trace", token: "TracedToken") -> dict[str, Any]:
    order = sorted(range(len(token.entropies)), key=token.entropies.__getitem__)[:SUREST]
    order = [token.main_context, *(at for at in order if at != token.main_context)][:SUREST]
    weights = trace.weights(token)
    heavy = sorted(range(len(weights)), key=lambda at: -weights[at])[:SUREST] if weights else []
    return {
        "text": safe_text(token.text),
        "context": token.chosen,
        "agreed": token.agreed,
        "end": token.end,
        "surest": [[at, round(token.entropies[at], 4)] for at in order],
        "weights": [[at, round(weights[at], 4)] for at in heavy] if weights else None,
    }
