"""Tests of reading safetensors files."""

import json
from pathlib import Path

import pytest

from attnkit.errors import DataError
from attnkit.storage import tensors


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("F4", 4),
        *(("F6_E2M3", 6), ("F6_E3M2", 6)),
        *(("F8_E4M3", 8), ("F8_E5M2", 8), ("F8_E8M0", 8), ("F99", 8), ("BOOL", 8)),
        *(("U16", 16), ("F32", 32), ("C64", 64), ("U64", 64)),
    ],
)
def test_every_dtype_is_read_or_raises_in_one_line(dtype: str, bits: int, tmp_path: Path) -> None:
    entry = {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, bits]}
    header = json.dumps({"x": entry}).encode().ljust(80)
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(bits))
    try:
        result = str(tensors.read(path)["x"].numel())
    except DataError as error:
        result = str(error)
    assert result in ("4", "8") or (dtype not in ("BOOL", "F32") and "\n" not in result), result
