"""Questions with passages: training rows, and sets with any number of passages."""

from collections.abc import Sequence

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.errors import DataError
from attnkit.recipe.schema import DataConfig
from attnkit.text import contains_answer

Passages = tuple[str, ...]


def accepted(row: Row) -> Passages:
    """Return the accepted answers."""
    return row.references or (row.target,)


def training_row(row: Row, data: DataConfig, split: str, number: int) -> Row:
    """Return row `number` of a split for training: the question after one passage or none.

    The passage is drawn from (data.seed, split, number): with probability `data.gold` a passage with the answer, with
    probability `data.other` a passage without it, otherwise none.
    """
    draw = Draw(f"reading/{data.seed}/{split}/{number}")
    point, context = draw.randrange(10**6) / 10**6, ""
    if point < data.gold:
        context = " ".join(_gold(row))
    elif point < data.gold + data.other:
        others = distractors(row)
        context = draw.choice(others) if others else ""
    return Row(f"{context} {row.source}".strip(), row.target, row.references)


def _gold(row: Row) -> Passages:
    """Return the passage with the answer, or all passages if it is unknown."""
    return row.contexts if row.gold is None else (row.contexts[row.gold],)


def distractors(row: Row) -> list[str]:
    """Return the passages of a row without its answer; none if the passage with the answer is unknown."""
    if row.gold is None:
        return []
    gold = row.contexts[row.gold]
    return [text for text in row.contexts if text != gold and not contains_answer(text, accepted(row))]


class QuestionSet:
    """Questions with any number of passages: the passage with the answer among passages of other questions."""

    def __init__(self, rows: Sequence[Row], seed: int) -> None:
        """Passages are drawn from (seed, row): those for a smaller number are a subset of those for a larger number.

        Raises DataError if no row has contexts.
        """
        if not any(row.contexts for row in rows):
            raise DataError("no row has contexts, which question answering needs")
        self.rows, self._seed = rows, seed
        self._pool = list(dict.fromkeys(text for row in rows for text in _gold(row)))
        self._distractors: dict[int, list[str]] = {}

    def contexts(self, number: int, count: int) -> Passages | None:
        """Return `count` contexts of a row; None if the row needs more, or there are too few.

        A single context is the passage with the answer; a question that needs several passages has all of them in it.
        Passages with the answer keep their order among the others.
        """
        row = self.rows[number]
        needed = _gold(row)
        if count == 1 or not needed:
            return (" ".join(needed),) if needed else None
        if count < len(needed):
            return None
        # Distractors: first the row's own passages, then passages of other rows.
        missing = count - len(needed)
        others = self._distractors.setdefault(number, list(dict.fromkeys(distractors(row))))
        if len(others) < missing:
            excluded = {*others, *row.contexts}
            for text in Draw(f"others/{self._seed}/{number}").sample(self._pool):
                if text not in excluded and not contains_answer(text, accepted(row)):
                    others.append(text)
        if len(others) < missing:
            return None
        contexts = others[:missing]
        draw = Draw(f"places/{self._seed}/{number}/{count}")
        positions = sorted(draw.sample(range(count), len(needed)))
        for position, text in zip(positions, needed, strict=True):
            contexts.insert(position, text)
        return tuple(contexts)
