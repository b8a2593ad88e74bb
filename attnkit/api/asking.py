"""Answers from many contexts, each read separately and merged at every token."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from attnkit.api.calls import several_texts
from attnkit.api.models import LoadedModel
from attnkit.errors import UsageError
from attnkit.nbce.answer import ask
from attnkit.nbce.merge import POOLS, Rule
from attnkit.recipe.schema import SearchConfig
from attnkit.recipe.search_settings import search_settings


@dataclass(frozen=True)
class ContextAnswer:
    """What a model answers from several contexts."""

    text: str
    source: int | None
    """Index of the context that the answer is from; None where it is unclear."""
    context: str | None
    """Its text."""
    share: float | None = None
    """Of the leading context in a merged answer, named or not (`attnkit.nbce.sources`)."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        where = "" if self.source is None else f"<br><small>from context {self.source}: "
        where += "" if self.context is None else f"{html.escape(self.context)}</small>"
        return f"<p>{html.escape(self.text)}{where}</p>"


def contexts(
    model: LoadedModel,
    contexts: Sequence[str],
    prompt: str,
    *,
    pool: str = "entropy",
    beta: float = 0.25,
    eta: float = 0.1,
    top_p: float = 0.95,
    max_length: int = 64,
    chat: bool = False,
    template: str = "",
) -> ContextAnswer:
    """Answer a prompt from any number of contexts, none of which is longer than the model reads.

    Args:
        model: what `load` gave; a Hugging Face model is asked as `chat` and `template` say.
        contexts: texts, each read with the prompt in a row of its own.
        prompt: the question.
        pool: entropy, mean, max, weighted; or another method of `attnkit nbce`: concat, best, ...
        beta, eta, top_p: of the pool, as in `attnkit.nbce.merge`.
        max_length: tokens of the answer, at most.

    Raises:
        UsageError: the method is unknown, or the model reads no contexts.
        DataError: a context is too long.
    """
    if isinstance(contexts, str):
        raise UsageError("contexts must be a list of texts: put the text in brackets")
    contexts = several_texts(contexts, "contexts")
    (prompt,) = several_texts([prompt], "the prompt")
    if not isinstance(model, LoadedModel):
        raise UsageError("the first argument must be a model: attnkit.load(NAME)")
    spec = search_settings(SearchConfig(method="greedy"), {"max_length": max_length}, False)
    rule = Rule(pool if pool in POOLS else "entropy", beta, eta, top_p)
    reader = model.reader(chat, template)
    (reply,) = ask(reader, pool, [contexts], [prompt], spec, rule)
    source = reply.context
    share = None if reply.source is None else reply.source.share
    return ContextAnswer(reply.text, source, None if source is None else contexts[source], share)
