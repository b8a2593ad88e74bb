"""Traces of a short answer."""

from attnkit.nbce.contexts import Context
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import TracedToken
from attnkit.nbce.sources import Source
from attnkit.nbce.trace import Trace


def context(name: str, text: str) -> Context:
    return Context(text, name)


CONTEXTS = (
    context("rome.txt", "Rome lies on the Tiber, said \x1b[31mLivy."),
    context("berlin.txt", "Berlin lies on the Spree."),
    context("paris.txt", "Paris is the capital of France, and it lies on the Seine."),
)
ANSWER = (("Paris", 2, 0.2), (" lies", 2, 0.8), (" on", 0, 0.1), (" the", 0, 0.0), (" Seine", 2, 0.4))
"""Tokens with the context chosen and its entropy."""


def make_trace(pool: str = "entropy") -> Trace:
    tokens = []
    for text, chosen, entropy in ANSWER:
        entropies = tuple(entropy if number == chosen else 0.6 + number / 2 for number in range(3))
        tokens.append(TracedToken(text, chosen if pool == "entropy" else None, entropies))
    end = TracedToken("", 2 if pool == "entropy" else None, (1.0, 1.0, 0.5), end=True)
    rule = Rule(pool)  # type: ignore[arg-type]
    source = Source(2, (0.4, 0.0, 0.6))
    return Trace("runs/lm", "Where?", "Paris lies on the Seine", CONTEXTS, rule, (*tokens, end), source)
