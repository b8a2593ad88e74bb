"""Which context each token of an answer came from, with the text that it adds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnkit.nbce.contexts import Context
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import TracedToken
from attnkit.nbce.sources import Source
from attnkit.text import token_texts

FORMAT, VERSION = "attnkit nbce trace", 5
"""Of `Trace.json`; the number grows when something that was there changes its meaning."""
DIGITS = 4  # of entropies, which are float32 or less to begin with

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Trace:
    """One answer with its sources."""

    model: str
    prompt: str
    answer: str
    contexts: tuple[Context, ...]
    rule: Rule
    tokens: tuple[TracedToken, ...]
    """Their texts, one behind the other, are the answer."""
    source: Source
    """The context that the answer is from."""

    @property
    def text_tokens(self) -> tuple[TracedToken, ...]:
        """The tokens of the text: all but the end."""
        return tuple(token for token in self.tokens if not token.end)

    @property
    def selects_contexts(self) -> bool:
        """Whether one context is selected at each token."""
        return self.rule.pool == "entropy"

    def selected_contexts(self) -> list[int]:
        """The selected contexts, in the order in which they first were."""
        if not self.selects_contexts:
            return []
        return list(dict.fromkeys(token.main_context for token in self.text_tokens))

    def json(self) -> dict[str, Any]:
        """All of it as JSON's types; contexts are counted from 1, entropies are in nats.

        `format` and `version` say how to read it.  A token has `context` null where the pool mixes contexts; `agreed`:
        the model has the same likeliest token without any context.  `source` is the named context, null where none
        leads, and `share` each context's share of the answer (`attnkit.nbce.sources`).
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
    decode: Decode,
) -> Trace:
    """The trace of one output.

    `contexts` are in the order of the rows, which `rule` merged; `steps` are one for each of the
    output's `ids`, and one more where the end token was written.
    """
    texts = token_texts(decode, ids)
    tokens = [step._replace(text=text) for text, step in zip(texts, steps, strict=False)]
    tokens += [step._replace(end=True) for step in steps[len(ids) :]]
    return Trace(model, prompt, "".join(texts), tuple(contexts), rule, tuple(tokens), source)
