"""Rows encoded into a folder."""

from pathlib import Path
from typing import Any

from attnkit.data.encoded import Encoded, RowEncoder, encode
from attnkit.data.rows import Counts
from attnkit.data.tokenizer import Tokenizer


def encode_rows(rows: Any, tokenizer: Tokenizer, path: Path, report: Any = None, **how: Any) -> Encoded:
    """Rows as a `RowEncoder` with these settings makes them."""
    return encode(rows, RowEncoder(tokenizer, **how), path, Counts(), report)
