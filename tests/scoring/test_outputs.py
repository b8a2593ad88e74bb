"""Tests of reading files of outputs, which should equal what the `sacrebleu` command reads."""

import io
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu.utils import smart_open

from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.outputs import read_outputs, score_files

NOTHING = io.BytesIO()


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n\r\t \u2028\x85")))
@example("a \r\n\x1c\x0b\nb\u2028c\n\n")
@example("no end")
def test_lines_equal_those_of_sacrebleu(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    text = text.lstrip("\ufeff")
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes(text.encode())
    with smart_open(str(path)) as file:
        expected = [line.rstrip() for line in file]
    assert read_outputs(str(path), NOTHING) == expected
    assert read_outputs("-", io.BytesIO(text.encode())) == expected


def test_files_of_one_name_are_named_by_their_paths(tmp_path: Path) -> None:
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "out.txt").write_text("x\n", encoding="utf-8")
        names.append(str(tmp_path / folder / "out.txt"))
    entries = score_files(names, names[:1], EvalConfig(), stdin=NOTHING)
    assert [row.variant for row in entries] == names
    single = score_files(names[:1], names[:1], EvalConfig(), stdin=NOTHING)
    assert single[0].variant == "hyp"
