"""Rows encoded into a folder."""

from pathlib import Path
from typing import Any

from attnkit.data.encoded import Encoded, RowEncoder, encode
from attnkit.data.rows import Counts
from attnkit.data.tokenizer import Tokenizer


def encode_rows(rows: Any, tokenizer: Tokenizer, path: Path, report: Any = None, **options: Any) -> Encoded:
    """Encode rows with a `RowEncoder` of these options."""
    return encode(rows, RowEncoder(tokenizer, **options), path, Counts(), report)
