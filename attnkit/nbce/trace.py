"""Traces of answers: the text, context and entropies of each token."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnkit.nbce.contexts import Context
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import TracedToken
from attnkit.nbce.sources import Source
from attnkit.text import token_texts

FORMAT, VERSION = "attnkit nbce trace", 5
"""Format of `Trace.json`; the version is incremented when an existing key changes its meaning."""
DIGITS = 4  # decimals of entropies and shares, which have float32 precision or less


@dataclass(frozen=True)
class Trace:
    """An answer with its sources."""

    model: str
    prompt: str
    answer: str
    contexts: tuple[Context, ...]
    rule: Rule
    tokens: tuple[TracedToken, ...]
    """Tokens whose concatenated texts are the answer."""
    source: Source

    @property
    def text_tokens(self) -> tuple[TracedToken, ...]:
        """Tokens of the answer without the end token."""
        return tuple(token for token in self.tokens if not token.end)

    @property
    def selects_contexts(self) -> bool:
        """Whether the pool selects one context at each token."""
        return self.rule.pool == "entropy"

    def selected_contexts(self) -> list[int]:
        """Return the selected contexts in order of first selection."""
        if not self.selects_contexts:
            return []
        return list(dict.fromkeys(token.main_context for token in self.text_tokens))

    def json(self) -> dict[str, Any]:
        """Convert to JSON types; contexts are numbered from 1, entropies are in nats.

        A token's `context` is null if the pool mixes contexts; `agreed` is `TracedToken.agreed`. `source` is the named
        context, null if none leads, and `share` is each context's share of the answer (`attnkit.nbce.sources`).
        """
        rule = self.rule._asdict()
        contexts = [
            {
                "number": number,
                "name": context.name,
                "text": context.text,
                "parts": [{"name": context.file, "start": context.start, "end": context.end}],
                "share": round(share, DIGITS),
            }
            for number, (context, share) in enumerate(zip(self.contexts, self.source.shares, strict=True), 1)
        ]
        return {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model,
            "prompt": self.prompt,
            "answer": self.answer,
            "source": None if self.source.context is None else self.source.context + 1,
            "rule": rule | {"weights": rule["weights"] and list(rule["weights"])},
            "contexts": contexts,
            "tokens": [
                {
                    "text": token.text,
                    "context": None if token.chosen is None else token.chosen + 1,
                    "entropy": round(token.entropies[token.main_context], DIGITS),
                    "agreed": token.agreed,
                    "end": token.end,
                    "entropies": [round(entropy, DIGITS) for entropy in token.entropies],
                }
                for token in self.tokens
            ],
        }


def trace(
    model: str,
    prompt: str,
    contexts: Iterable[Context],
    rule: Rule,
    ids: Sequence[int],
    steps: Sequence[TracedToken],
    source: Source,
    decode: Callable[[Sequence[int]], str],
) -> Trace:
    """Build the trace of one output, with contexts in the order of the merged rows.

    `steps` has one step for each of `ids`, and one more if the output ends with an end token.
    """
    texts = token_texts(decode, ids)
    tokens = [step._replace(text=text) for text, step in zip(texts, steps, strict=False)]
    tokens += [step._replace(end=True) for step in steps[len(ids) :]]
    return Trace(model, prompt, "".join(texts), tuple(contexts), rule, tuple(tokens), source)
