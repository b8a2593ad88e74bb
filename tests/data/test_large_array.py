"""Noise of a text that is larger than memory against that of one in memory."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from attnkit.data import large_array, masking, span_corruption
from attnkit.data.encoded import Blocks, Encoded
from attnkit.data.masking import MASK, with_noise
from attnkit.data.rows import Counts, Row
from attnkit.data.tokenizer import EOS, Tokenizer
from attnkit.errors import OutputError
from attnkit.recipe.schema import TokenizerConfig

LENGTH = 16
SPECIAL = (MASK, *span_corruption.sentinels(LENGTH))
VOCABULARY = Tokenizer.train(
    TokenizerConfig(type="char", size=60, special=SPECIAL), [Row("", "abcdefghijklmnopqrstuvwxyz")]
).target


def text(tokens: int) -> Encoded:
    ids = np.random.default_rng(1).integers(20, len(VOCABULARY), tokens).astype(np.uint16)
    ids[5::6] = EOS
    return Encoded(None, Blocks(ids, LENGTH), Counts(), "", Path())


@pytest.mark.parametrize("chunk", [7, 64])
@pytest.mark.parametrize("objective", ["masked", "span-corruption"])
def test_it_is_the_same_made_in_chunks_in_files(
    objective: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path))
    whole = with_noise(text(600), VOCABULARY, objective, LENGTH, (1, 1))
    for module in (masking, span_corruption):
        monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(large_array, "IN_MEMORY", 100)
    mapped = with_noise(text(600), VOCABULARY, objective, LENGTH, (1, 1))
    for side in ("source", "target"):
        one, other = getattr(whole, side), getattr(mapped, side)
        assert isinstance(other.ids, np.memmap)
        assert np.array_equal(one.ids, other.ids)
        assert np.array_equal(one.starts, other.starts)
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(large_array, "IN_MEMORY", 100)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match="No space left"):
        with_noise(text(600), VOCABULARY, "masked", LENGTH)
