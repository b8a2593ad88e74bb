"""Data sets of Hugging Face, by the `datasets` extra: rows of a split as a file of JSON lines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError
from attnkit.recipe.data_rules import HUGGING_FACE
from attnkit.storage.cache import read_or_build
from attnkit.storage.files import check_file, sha256_json

SPLITS = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
"""What a split may be called in a data set."""
ROWS = "rows.jsonl"


def rows_file(name: str, split: str, cache: Path, *, offline: bool = False) -> Path:
    """The file with the rows of hf:NAME or hf:NAME:CONFIG, written at the first use.

    NAME is that of a data set, or a folder with files in a format that `datasets` reads.

    Raises:
        UnavailableError: `datasets` is not installed, or the hub cannot be reached.
        MissingInputError: there is no such data set, or it has no such split.
        DataError: its files are damaged.
    """
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise UnavailableError(
            f"data.{split}: {name} needs datasets: pip install 'attnkit[datasets]'"
        ) from error
    place, _, config = name.removeprefix(HUGGING_FACE).partition(":")
    if offline:
        datasets.config.HF_HUB_OFFLINE = datasets.config.HF_DATASETS_OFFLINE = True
    try:
        datasets.disable_progress_bars()
        found: Mapping[str, Any] = datasets.load_dataset(place, config or None)
    except AttnkitError:
        raise
    except (FileNotFoundError, ConnectionError) as error:
        what = str(error).splitlines()[0]
        raise MissingInputError(f"data.{split}: {name}: {what}") from error
    except Exception as error:  # the library has many kinds
        what = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"data.{split}: {name}: cannot be read: {what}") from error
    part = next((word for word in SPLITS[split] if word in found), None)
    if part is None:
        raise MissingInputError(
            f"data.{split}: {name} has no such split; it has {', '.join(found)}"
        )
    rows = found[part]
    key = sha256_json([place, config, part, str(getattr(rows, "_fingerprint", ""))])

    def write(folder: Path) -> None:
        with (folder / ROWS).open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")

    def read(folder: Path) -> Path:
        check_file(folder / ROWS)
        return folder / ROWS

    return read_or_build(cache / "datasets" / key[:32], read, write)[0]
