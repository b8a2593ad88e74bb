"""Questions with passages: what training reads of them, and with which passages they are asked."""

from collections.abc import Sequence

from attnkit.data.rows import Row
from attnkit.data.synthetic.draw import Draw
from attnkit.errors import DataError
from attnkit.recipe.schema import DataConfig
from attnkit.text import contains_answer

Passages = tuple[str, ...]


def accepted(row: Row) -> Passages:
    """The answers that count as right."""
    return row.references or (row.target,)


def reading(row: Row, data: DataConfig, split: str, number: int) -> Row:
    """What training reads of row `number` of a split: the question behind one passage or none.

    Which passage is drawn from (data.seed, split, number): with probability `data.gold` the one
    that answers, with `data.other` one that does not, else none.
    """
    draw = Draw(f"reading/{data.seed}/{split}/{number}")
    place, context = draw.below(10**6) / 10**6, ""
    if place < data.gold:
        context = " ".join(row.contexts) if row.gold is None else row.contexts[row.gold]
    elif place < data.gold + data.other:
        others = distractors(row)
        context = draw.one(others) if others else ""
    return Row(f"{context} {row.source}".strip(), row.target, row.references)


def distractors(row: Row) -> list[str]:
    """The passages of a row that do not have its answer."""
    if row.gold is None:
        return []
    right = row.contexts[row.gold]
    answers = accepted(row)
    return [text for text in row.contexts if text != right and not contains_answer(text, answers)]


class QuestionSet:
    """Questions with any number of passages: the right one among passages of other questions."""

    def __init__(self, rows: Sequence[Row], seed: int) -> None:
        """Passages are drawn from (seed, row), those of fewer among those of more.

        Raises:
            DataError: no row has a context.
        """
        if not any(row.contexts for row in rows):
            raise DataError("no row has contexts: questions are asked with passages")
        self.rows, self._seed = rows, seed
        answers = [row.contexts if row.gold is None else (row.contexts[row.gold],) for row in rows]
        self._pool = list(dict.fromkeys(text for texts in answers for text in texts))
        self._others: dict[int, list[str]] = {}

    def contexts(self, number: int, count: int) -> Passages | None:
        """`count` contexts of a row; None where it needs more.

        With one context it is the right one; a question that needs several has all of them in it.
        They keep their order among others, which have no answer.

        Raises:
            DataError: there are not enough passages without the answer.
        """
        row = self.rows[number]
        needed = list(row.contexts if row.gold is None else (row.contexts[row.gold],))
        if count == 1 or not needed:
            return (" ".join(needed),) if needed else None
        if count < len(needed):
            return None
        others = self._drawn(number, count - len(needed))
        draw = Draw(f"places/{self._seed}/{number}/{count}")
        places = sorted(draw.several(range(count), len(needed)))
        for place, text in zip(places, needed, strict=True):
            others.insert(place, text)
        return tuple(others)

    def _drawn(self, number: int, count: int) -> list[str]:
        """Passages without the answer: the row's own first, then those of other rows."""
        row = self.rows[number]
        known = self._others.setdefault(number, list(dict.fromkeys(distractors(row))))
        if len(known) < count:
            taken = {*known, *row.contexts}
            draw = Draw(f"others/{self._seed}/{number}")
            for text in draw.several(self._pool, len(self._pool)):
                if text not in taken and not contains_answer(text, accepted(row)):
                    known.append(text)
        if len(known) < count:
            raise DataError(
                f"row {number + 1} has {len(known)} passages without its answer, and {count} are "
                "asked for: ask with fewer contexts"
            )
        return known[:count]
