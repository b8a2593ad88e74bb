"""Answers from many contexts, which are read separately and merged at each token."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from attnkit.api.calls import text_list
from attnkit.api.models import LoadedModel
from attnkit.errors import UsageError
from attnkit.nbce.answer import ask
from attnkit.nbce.merge import POOLS, Rule
from attnkit.recipe.schema import SearchConfig
from attnkit.recipe.search_settings import search_settings


@dataclass(frozen=True)
class ContextAnswer:
    """An answer from several contexts."""

    text: str
    source: int | None
    """0-based index of the context that the answer is from; None if unclear."""
    context: str | None
    """Text of that context."""
    share: float | None = None
    """Share of the leading context in a merged answer, whether or not it is named (`attnkit.nbce.sources`)."""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        note = "" if self.source is None else f"<br><small>from context {self.source}: "
        note += "" if self.context is None else f"{html.escape(self.context)}</small>"
        return f"<p>{html.escape(self.text)}{note}</p>"


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
    """Answer a prompt from any number of contexts, each of which fits the model.

    Args:
        model: model returned by `load`.
        contexts: texts, each read with the prompt in a separate row.
        pool: entropy, mean, max or weighted; or another method of `attnkit nbce`: concat, best, ...
        beta, eta, top_p: parameters of the pool, see `attnkit.nbce.merge`.
        max_length: maximum number of tokens in the answer.
        chat, template: see `attnkit.nbce.open_model`; for Hugging Face models only.

    Raises:
        UsageError: The method is unknown, the model cannot read contexts, or a context is too long.
        DataError: The model returns NaN.
    """
    if isinstance(contexts, str):
        raise UsageError("contexts must be a list of texts: use [text]")
    contexts = text_list(contexts, "contexts")
    (prompt,) = text_list([prompt], "the prompt")
    if not isinstance(model, LoadedModel):
        raise UsageError("the first argument must be a model: attnkit.load(NAME)")
    spec = search_settings(SearchConfig(method="greedy"), {"max_length": max_length}, False)
    rule = Rule(pool if pool in POOLS else "entropy", beta, eta, top_p)
    reader = model.reader(chat, template)
    (reply,) = ask(reader, pool, [contexts], [prompt], spec, rule)
    text = None if reply.context is None else contexts[reply.context]
    share = None if reply.source is None else reply.source.share
    return ContextAnswer(reply.text, reply.context, text, share)
