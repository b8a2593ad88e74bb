"""Tests of metrics of word vectors: values by hand, formats of files, malformed files."""

import gzip
import math
from pathlib import Path

import pytest

from attnkit.errors import DataError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import score
from attnkit.storage.files import sha256_file

NAMES = ["embedding-average", "embedding-greedy", "embedding-extrema"]
VECTORS = "x 1 0\ny 0 1\nz -2 1\nw 3 3\n"


def values(folder: Path, text: str, *references: str, vectors: str = VECTORS) -> list[float]:
    """Return the three scores of one line, of which 1 is the highest."""
    (folder / "v.txt").write_text(vectors)
    found = score(NAMES, [text], [references], EvalConfig(vectors=str(folder / "v.txt")))
    return [found[name].value / 100 for name in NAMES]


def test_values_by_hand(tmp_path: Path) -> None:
    """x y for x z: sums (1, 1) and (-1, 1); best matches x 1 and y 1/sqrt 5, x 1 and z 1/sqrt 5;
    farthest from zero (1, 1) and (-2, 1)."""
    expected = [0, (1 + 1 / math.sqrt(5)) / 2, -1 / math.sqrt(10)]
    assert values(tmp_path, "x y", "x z") == pytest.approx(expected, abs=1e-12)


def test_best_reference_counts_and_unknown_words_are_ignored(tmp_path: Path) -> None:
    assert values(tmp_path, "x", "y", "w w") == pytest.approx([math.sqrt(0.5)] * 3)
    assert values(tmp_path, "x unknown", "X") == pytest.approx([1, 1, 1])
    assert values(tmp_path, "unknown", "x") == values(tmp_path, "", "x") == [0, 0, 0]


@pytest.mark.parametrize("header", ["", "4 2\n"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
@pytest.mark.parametrize("compressed", [False, True])
def test_formats_of_glove_word2vec_and_fasttext(tmp_path: Path, header: str, end: str, compressed: bool) -> None:
    data = (header + VECTORS + ". . 5 5\n").replace("\n", end).encode()
    path = tmp_path / ("v.vec.gz" if compressed else "v.vec")
    path.write_bytes(gzip.compress(data, mtime=0) if compressed else data)
    found = score(NAMES, ["x y"], [["x z . ?"]], EvalConfig(vectors=str(path)))
    assert found["embedding-extrema"].value == pytest.approx(-100 / math.sqrt(10))
    assert "|dim:2|known:50.0%|" in found["embedding-extrema"].signature


def test_signature_has_the_hash_of_the_file_and_the_share_of_known_words(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(VECTORS)
    found = score(NAMES, ["other words"], [["x y z what"]], EvalConfig(vectors=str(path)))
    assert f"|vectors:{sha256_file(path)[:8]}|dim:2|known:75.0%|" in found[NAMES[0]].signature


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no word vectors"),
        ("4 2\n", "has no word vectors"),
        ("x 1 0\ny 1\n", ":2: must be a word and 2 numbers, separated by spaces, got 'y 1'"),
        ("2 3\nx 1 0\n", ":2: must be a word and 3 numbers"),
        ("x\ty\n", ":1: must be a word and its numbers"),
        ("a sentence of text\n", ":1: 'sentence' is not a finite number"),
        ("y 1 0\nx 1 nan\n", ":2: 'nan' is not a finite number"),
        ("q 1 0\n", "has no vector of any word of the references, such as 'x'"),
    ],
)
def test_malformed_file_raises_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        values(tmp_path, "x", "x", vectors=content)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
