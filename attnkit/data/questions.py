"""Questions with passages: the rows that training reads, and sets with many passages."""

from collections.abc import Sequence

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.errors import DataError
from attnkit.recipe.schema import DataConfig
from attnkit.text import contains_answer

Passages = tuple[str, ...]


def accepted(row: Row) -> Passages:
    """The answers that count as right."""
    return row.references or (row.target,)


def training_row(row: Row, data: DataConfig, split: str, number: int) -> Row:
    """What training reads of row `number` of a split: the question after one passage or none.

    Which passage is drawn from (data.seed, split, number): with probability `data.gold` the one
    that answers, with `data.other` one that does not, else none.
    """
    draw = Draw(f"reading/{data.seed}/{split}/{number}")
    gold_fraction, distractor_fraction = data.gold, data.other
    point, context = draw.randrange(10**6) / 10**6, ""
    if point < gold_fraction:
        context = " ".join(_gold(row))
    elif point < gold_fraction + distractor_fraction:
        others = distractors(row)
        context = draw.choice(others) if others else ""
    return Row(f"{context} {row.source}".strip(), row.target, row.references)


def _gold(row: Row) -> Passages:
    """The passage that answers, or all where no single one is known to."""
    return row.contexts if row.gold is None else (row.contexts[row.gold],)


def distractors(row: Row) -> list[str]:
    """The passages of a row that do not have its answer."""
    if row.gold is None:
        return []
    gold = row.contexts[row.gold]
    return [text for text in row.contexts if text != gold and not contains_answer(text, accepted(row))]


class QuestionSet:
    """Questions with any number of passages: the right one among passages of other questions."""

    def __init__(self, rows: Sequence[Row], seed: int) -> None:
        """Passages are drawn from (seed, row), those of fewer among those of more.

        Raises DataError: no row has a context.
        """
        if not any(row.contexts for row in rows):
            raise DataError("no row has contexts: questions are asked with passages")
        self.rows, self._seed = rows, seed
        self._pool = list(dict.fromkeys(text for row in rows for text in _gold(row)))
        self._others: dict[int, list[str]] = {}

    def contexts(self, number: int, count: int) -> Passages | None:
        """`count` contexts of a row; None where it needs more, or there are not so many.

        With one context it is the right one; a question that needs several has all of them in it.
        They keep their order among others, which have no answer.
        """
        row = self.rows[number]
        needed = _gold(row)
        if count == 1 or not needed:
            return (" ".join(needed),) if needed else None
        if count < len(needed):
            return None
        # Passages without the answer: the row's own first, then those of other rows.
        wanted = count - len(needed)
        known = self._others.setdefault(number, list(dict.fromkeys(distractors(row))))
        if len(known) < wanted:
            taken = {*known, *row.contexts}
            for text in Draw(f"others/{self._seed}/{number}").sample(self._pool):
                if text not in taken and not contains_answer(text, accepted(row)):
                    known.append(text)
        if len(known) < wanted:
            return None
        contexts = known[:wanted]
        draw = Draw(f"places/{self._seed}/{number}/{count}")
        positions = sorted(draw.sample(range(count), len(needed)))
        for position, text in zip(positions, needed, strict=True):
            contexts.insert(position, text)
        return tuple(contexts)
