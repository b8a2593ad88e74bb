"""Validation and test rows taken from training data (`data.split`), all rows of a source together.

A row of training data never has the source of a validation or test row, however often the file
repeats it.  Which sources are taken is a pure function of the rows, their order and the seed.
Rows without sources, in language modelling, have their text instead.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.data.text_form import clean, normal_form
from attnkit.errors import DataError
from attnkit.recipe.schema import DataConfig


class SplitRows(NamedTuple):
    """Which sources each split has, and how many rows."""

    of_source: Mapping[bytes, str]
    """Digest of a source -> its split, where that is not train."""
    rows: Mapping[str, int]


def digest_of(row: Row, data: DataConfig, causal: bool) -> bytes:
    """What keeps rows together: the source (where `causal` the text) as a tokenizer reads it."""
    text = clean(normal_form(row.target if causal else row.source, data.normalize))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).digest()


def split_rows(name: str, rows: Iterable[Row], data: DataConfig, causal: bool) -> SplitRows:
    """Draw the sources of `data.split` from rows of training data.

    Sources are taken in random order, each if all its rows still find room, so that the numbers
    are met unless few sources have very many rows.

    Raises:
        DataError: too few rows, or nothing is left to train on; `name` is that of the file.
    """
    sizes: dict[bytes, int] = {}
    for row in rows:
        key = digest_of(row, data, causal)
        sizes[key] = sizes.get(key, 0) + 1
    total = sum(sizes.values())
    if not total:
        raise DataError(f"{name}: has no rows")
    left = {split: data.split_off(split) for split in ("valid", "test") if data.split_off(split)}
    found = dict.fromkeys(left, 0)
    chosen: dict[bytes, str] = {}
    for key in Draw(f"split/{data.seed}").sample(list(sizes)):
        fitting = (split for split, room in left.items() if sizes[key] <= room)
        if (split := next(fitting, None)) is None:
            if not any(left.values()):
                break
            continue
        chosen[key] = split
        left[split] -= sizes[key]
        found[split] += sizes[key]
    short = next((split for split, rows in found.items() if not rows), None)
    rest = total - sum(found.values())
    if short or not rest:
        wanted = ", ".join(f"{data.split_off(split):,} {split}" for split in found)
        kind = "texts" if causal else "sources"
        raise DataError(
            f"{name}: {total:,} rows of {len(sizes):,} different {kind} "
            f"cannot give {wanted} rows and something to train on; lower data.split"
        )
    return SplitRows(chosen, {"train": rest, **found})
