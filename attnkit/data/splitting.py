"""Validation and test rows taken from training data (`data.split`), all rows of a source together.

A row of training data never has the source of a validation or test row, however often the file
repeats it.  Which sources are taken is a pure function of the rows, their order and the seed.
Rows without sources, in language modelling, have their text instead.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.data.text_form import clean, normal_form
from attnkit.errors import DataError
from attnkit.recipe.schema import DataConfig


def digest_of(row: Row, data: DataConfig, causal: bool) -> bytes:
    """What keeps rows together: the source (where `causal` the text) as a tokenizer reads it."""
    text = clean(normal_form(row.target if causal else row.source, data.normalize))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).digest()


def split_rows(
    name: str, rows: Iterable[Row], data: DataConfig, causal: bool
) -> tuple[dict[bytes, str], dict[str, int]]:
    """Draw the sources of `data.split` from rows of training data.

    Sources are taken in random order, each if all its rows still find room, so that the numbers
    are met unless few sources have very many rows.

    Returns:
        The split of each source (its digest) that is not in train, and the rows of all splits.

    Raises:
        DataError: too few rows, or nothing is left to train on; `name` is that of the file.
    """
    sizes = Counter(digest_of(row, data, causal) for row in rows)
    if not sizes:
        raise DataError(f"{name}: has no rows")
    asked = {split: data.split_off(split) for split in ("valid", "test") if data.split_off(split)}
    left, chosen = dict(asked), dict[bytes, str]()
    for key in Draw(f"split/{data.seed}").sample(list(sizes)):
        if split := next((split for split, room in left.items() if sizes[key] <= room), None):
            chosen[key] = split
            left[split] -= sizes[key]
    found = {split: number - left[split] for split, number in asked.items()}
    rest = sizes.total() - sum(found.values())
    if not (rest and all(found.values())):
        wanted = ", ".join(f"{number:,} {split}" for split, number in asked.items())
        kind = "texts" if causal else "sources"
        raise DataError(
            f"{name}: {sizes.total():,} rows of {len(sizes):,} different {kind} "
            f"cannot give {wanted} rows and something to train on; lower data.split"
        )
    return chosen, {"train": rest, **found}
