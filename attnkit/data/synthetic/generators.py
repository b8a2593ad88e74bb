"""Selection of the generator that makes the rows of a corpus."""

from importlib import import_module
from typing import Any

from attnkit.data.synthetic.known_source import SOURCES
from attnkit.data.synthetic.marked import MarkedRows
from attnkit.data.synthetic.recall import TASKS, RecallRows
from attnkit.recipe.corpus_cards import Card


def generator_of(card: Card) -> Any:
    """Return the generator of a corpus: a module or an object.

    It has VERSION, which increases whenever the same seed gives other rows, SIZES by split, and `rows(split, size,
    seed)`, which also takes the length of a row, or the number of passages of a question, if these can be chosen.  If
    the vocabulary must contain words that no row need contain, `words` lists them.
    """
    if card.marked:
        return MarkedRows(card.name, card.marked)
    if card.name in TASKS and card.length:
        return RecallRows(card.name, card.length)
    name = card.name.removeprefix("toy-").replace("-", "_")
    return SOURCES.get(card.name) or import_module(f"attnkit.data.synthetic.{name}")
