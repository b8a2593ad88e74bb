"""Tests of contexts from files, lines, tables and folders, and of splitting long ones."""

import io
import re
import sys
from pathlib import Path

import pytest
from helpers.trained import tokenizer
from hypothesis import given
from hypothesis import strategies as st

from attnkit.errors import DataError, MissingInputError, UsageError
from attnkit.nbce.contexts import Context, find, from_file, prepare, windows


def count(text: str) -> int:
    return len(tokenizer().target.encode([text])[0])


def words(text: str) -> int:
    return len(text.split())


def context(text: str, name: str = "a.txt") -> Context:
    return Context(text, name)


def test_file_is_one_context(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\ntwo\x00\x1b[31m\u00e9\n".encode())
    (found,) = from_file(str(path))
    assert found.text == "one\ntwo  [31m\u00e9\n"
    assert (found.name, found.start, found.end) == (str(path), 0, len(found.text))


def test_standard_input_is_one_context_or_one_per_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_stdin(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    set_stdin(b"one dog\n")
    assert from_file("-") == [context("one dog\n", "standard input")]
    set_stdin(b'"one dog"\n\n{"text": "two", "title": 3}\n')
    found = [(c.text, c.name) for c in from_file("-", lines=True)]
    assert found == [("one dog", "standard input:1"), ("two", "standard input:3")]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("{", "2:2: not JSON"),
        ("3", "2: each line must be"),
        ("  [1]", "2: each line must be"),
        ('{"txt": "a"}', "2: each line must be"),
        ('{"text": null}', "2: each line must be"),
        ('{"contexts": ["a"]}', "2: each line must be"),
        ("[" * 100_000, "2: cannot read the JSON"),
    ],
)
def test_malformed_line_raises_with_its_place(tmp_path: Path, line: str, place: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(f'"fine"\n{line}\n', encoding="utf-8")
    with pytest.raises(DataError, match=f"^{path}:{place}"):
        from_file(str(path))


def test_missing_and_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        from_file(str(tmp_path / "none.txt"))
    (tmp_path / "bad.txt").write_bytes(b"one\ntw\xff")
    with pytest.raises(DataError, match=r"bad\.txt:2:3: malformed UTF-8 \(byte 0xff\)"):
        from_file(str(tmp_path / "bad.txt"))
    (tmp_path / "half.jsonl").write_text(r'"a\ud800b"', encoding="utf-8")
    assert [c.text for c in from_file(str(tmp_path / "half.jsonl"))] == ["a\ufffdb"]


def test_tables_have_one_context_per_row(tmp_path: Path) -> None:
    table, column, tabs = (tmp_path / name for name in ("t.csv", "one.csv", "t.tsv"))
    table.write_text('id,Text\n1,"a, b"\n\n2,"c\nd"\n', encoding="utf-8")
    column.write_text('"a, b"\nc\n', encoding="utf-8")
    tabs.write_text("text\tid\na, b\t1\n", encoding="utf-8")
    found = [(c.text, c.name.rpartition(":")[2]) for c in from_file(str(table))]
    assert found == [("a, b", "2"), ("c\nd", "4")]
    assert [c.text for c in from_file(str(column))] == ["a, b", "c"]
    assert [c.text for c in from_file(str(tabs))] == ["a, b"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "x,y\n1,2\n", "a.csv:1: no column has the name text; rename one of the columns 'x, y'"),
        ("a.csv", "text,y\n1,2\n3\n", "a.csv:3: the line has 1 cell, but the first line has 2"),
        ("a.csv", 'text\n"a', "a.csv:2: not CSV: a quote is not closed"),
        ("a.pdf", "%PDF", "a .pdf file is not plain text; convert the file first: pdftotext "),
        ("a.html", "<p>", "convert the file first: pandoc -t plain "),
    ],
)
def test_other_files_and_malformed_tables_raise(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(message)):
        from_file(str(tmp_path / name))


def test_folders_and_patterns_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("n/b.txt", "n/a.md", "n/sub/c.jsonl", "n/.hidden.txt", "n/d.pdf", "n[1].txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x")
    assert find(["n"]) == ["n/a.md", "n/b.txt", "n/sub/c.jsonl"]
    assert find(["n/*.txt", "-", "n[1].txt", "n/d.pdf"]) == ["n/b.txt", "-", "n[1].txt", "n/d.pdf"]
    assert find(["n/**/*.jsonl"]) == ["n/sub/c.jsonl"]
    Path("empty").mkdir()
    with pytest.raises(MissingInputError, match=r"'empty': the folder has no file of \.txt, \.md"):
        find(["empty"])
    with pytest.raises(MissingInputError, match="no file matches this pattern"):
        find(["n/*.csv"])


def test_empty_and_duplicate_contexts_are_skipped_with_a_note() -> None:
    pairs = [context(*pair) for pair in (("one", "a"), (" \n", "b"), ("two", "c"), ("one\n", "d"), ("", "e"))]
    found, notes = prepare(pairs, words)
    assert [c.text for c in found] == ["one", "two"]
    assert notes == ["2 empty contexts skipped: b, e", "1 duplicate context skipped: d = a"]


@pytest.mark.parametrize(("texts", "reason"), [([], ""), ([""], r" \(1 empty\)"), (["", " "], r" \(2 empty\)")])
def test_no_context_raises(texts: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=f"there is no context{reason}: .*--context"):
        prepare([context(text) for text in texts], words)


def test_long_context_is_split() -> None:
    long = context("one dog " * 20)
    found, notes = prepare([context("two"), long], words, window=10)
    assert found[0].text == "two"
    assert all(words(c.text) <= 10 for c in found)
    assert "1 context split into windows of 10 tokens (5 rows in total)" in notes[0]
    for part in found[1:]:
        assert part.text == long.text[part.start : part.end]
        assert part.name == f"a.txt[{part.start}:{part.end}]"


TEXTS = st.text(st.sampled_from("abc\u00e9 \n.,\u4e2d\u3002\u0301\u200d"), max_size=120)


@given(TEXTS, st.integers(1, 12))
def test_windows_cover_the_text_in_order(text: str, size: int) -> None:
    def letters(part: str) -> int:
        return sum(not letter.isspace() for letter in part)

    try:
        spans = windows(text, letters, size)
    except UsageError:
        assert "\u0301" in text or "\u200d" in text  # one character of many code points
        return
    assert [span[0] for span in spans[:1]] == [0] * bool(text)
    assert spans[-1:] == [] or spans[-1][1] == len(text)
    for start, end in spans:
        assert start < end
        assert letters(text[start:end]) <= size
    for (start, end), (after, later) in zip(spans, spans[1:], strict=False):
        assert start < after == end < later


def test_windows_of_tokens_end_between_words() -> None:
    text = " ".join(f"one red dog and {n} cats." for n in range(40))
    spans = windows(text, count, 12)
    assert all(count(text[start:end]) <= 12 for start, end in spans)
    assert all(start == 0 or text[start - 1] == " " for start, _ in spans)
    tokens = sum(count(text[start:end]) for start, end in spans)
    assert tokens / len(spans) > 12 - 6  # full, except for a word
    assert windows("one dog", count, 12) == [(0, 7)]


def test_long_text_is_split_with_few_counts() -> None:
    text, counted = "word " * 20_000, 0

    def count_words(part: str) -> int:
        nonlocal counted
        counted += len(part)
        return words(part)

    assert len(windows(text, count_words, 200)) == 100
    assert counted < 20 * len(text)
