"""Tests of the readers of lines, aligned files, JSON and dialogues."""

import gzip
import json
import lzma
import os
import re
import subprocess
import tracemalloc
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnkit.data.formats import BOM, FREE, MAX_LINE_BYTES, Stream, read_lines, read_pairs, read_parlai, read_text
from attnkit.data.records import read_rows
from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError

LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30)
share_tmp_path = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, data: bytes | str, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def error_of(reader: Iterable[object]) -> str:
    with pytest.raises(DataError) as caught:
        list(reader)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@share_tmp_path
@given(lines=st.lists(LINE, max_size=20), last=st.booleans(), compressed=st.booleans())
def test_lines_of_any_text(tmp_path: Path, lines: list[str], last: bool, compressed: bool) -> None:
    text = "".join(line + "\n" for line in lines)
    if lines and lines[-1] and not last:
        text = text[:-1]
    data = text.encode()
    path = write(tmp_path, gzip.compress(data) if compressed else data)
    expected = [line.removesuffix("\r") for line in lines]
    if lines and not text.endswith("\n"):
        expected[-1] = lines[-1]
    if lines and lines[0].startswith("\ufeff"):
        expected[0] = expected[0][1:]
        if text == "\ufeff":
            expected = []
    assert list(read_lines(path)) == expected


@share_tmp_path
@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_with_replacement_or_raise(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, b"x" + data)
    counts = Counts()
    text = "\n".join(read_lines(path, "replace", counts))
    try:
        list(read_lines(path))
    except DataError:
        assert counts.replaced > 0
        assert "\ufffd" in text
    else:
        assert counts.replaced == 0


CONTROLS = "a\u2028b\x85c\x0bd\x0ce\x1cf\rg\x00\x7f\t"


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (f"{CONTROLS}\n{CONTROLS}", [CONTROLS, CONTROLS]),
        ("\n\na\n\n", ["", "", "a", ""]),
        ("", []),
        (b"\xef\xbb\xbfa\r\nb\xef\xbb\xbf\r\n\r\n", ["a", "b\ufeff", ""]),
    ],
    ids=["only line feeds end lines", "empty lines", "empty file", "CRLF and byte order mark"],
)
def test_line_ends(tmp_path: Path, data: str | bytes, lines: list[str]) -> None:
    assert list(read_lines(write(tmp_path, data))) == lines


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xef\xbb\xbfok\nsch\xf6n\n", ":2:4: malformed UTF-8 (byte 0xf6); save the file as"),
        (b"\xef\xbb\xbfa\xff", ":1:5: malformed UTF-8 (byte 0xff)"),
        (b"0123456789abcde\n" * 200_000 + b"abc\xffd\n", ":200001:4: malformed UTF-8"),  # in a later block
        ("text".encode("utf-16"), ": this is UTF-16 text; convert it to UTF-8"),
        (b"BZh91AY&SY\xff", ": this is bzip2 data; unpack it"),
        (b"\x28\xb5\x2f\xfd\xff", ": this is zstd data"),
    ],
    ids=["line and byte", "first line", "later block", "UTF-16", "bzip2", "zstd"],
)
def test_malformed_utf8_and_other_formats_raise(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path, data)
    assert error_of(read_lines(path)).startswith(f"{path}{message}")


def test_replaced_bytes_are_counted(tmp_path: Path) -> None:
    counts = Counts()
    path = write(tmp_path, "\ufffd".encode() + b"a\xffb\xc3\n\xfe")
    assert list(read_lines(path, "replace", counts)) == ["\ufffda\ufffdb\ufffd", "\ufffd"]
    assert counts.replaced == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compression_is_recognized_by_bytes_not_by_name(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    compressed = compress(b"a\nb\n") + compress(b"c")
    assert list(read_lines(write(tmp_path, compressed, "text"))) == ["a", "b", "c"]
    assert list(read_lines(write(tmp_path, b"a\nb\n", "text.gz"))) == ["a", "b"]
    long = b"".join(b"%d\n" % i for i in range(600_000))
    path = write(tmp_path, compress(long[: 1 << 21]) + compress(long[1 << 21 :]), "long")
    assert list(read_lines(path)) == list(map(str, range(600_000)))


@pytest.mark.parametrize("fault", ["cut", "flipped", "header", "tail"])
@pytest.mark.parametrize(("kind", "compress", "header"), [("gzip", gzip.compress, 2), ("xz", lzma.compress, 6)])
def test_damaged_compressed_text_raises(
    tmp_path: Path, kind: str, compress: Callable[[bytes], bytes], header: int, fault: str
) -> None:
    compressed = bytearray(compress(os.urandom(5000).hex().encode()))
    if fault == "cut":
        del compressed[-9:]
    elif fault == "tail":
        compressed += b"junk"
    else:
        compressed[3000 if fault == "flipped" else header] ^= 0x55
    path = write(tmp_path, bytes(compressed))
    assert error_of(read_lines(path)).startswith(f"{path}: damaged {kind} data (")


def test_gzip_bomb_raises_before_it_is_decompressed(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(2 * FREE // (1 << 20)):
            file.write((b" " * 1023 + b"\n") * 1024)
    lengths: list[int] = []
    with pytest.raises(DataError, match="more than 100 times as long"):
        lengths.extend(map(len, read_lines(path)))
    assert len(lengths) <= FREE / 1024
    with subprocess.Popen(["cat", path], stdout=subprocess.PIPE) as pipe:
        assert pipe.stdout
        with pytest.raises(DataError, match="^pipe: .*more than 100 times as long"):
            deque(read_lines(Stream(pipe.stdout, "pipe")), 0)


def test_xz_data_that_needs_too_much_memory_raises(tmp_path: Path) -> None:
    options = {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}
    data = bytearray(lzma.compress(b"a\n", filters=[options | {"nice_len": 32}]))
    assert list(read_lines(write(tmp_path, bytes(data)))) == ["a"]
    # the header of the block, which ends with its CRC-32, holds the size of the dictionary
    start = 12
    end = start + (data[start] + 1) * 4
    data[data.index(b"\x21\x01", start, end) + 2] = 38
    data[end - 4 : end] = zlib.crc32(bytes(data[start : end - 4])).to_bytes(4, "little")
    assert "damaged xz data (Memory usage limit" in error_of(read_lines(write(tmp_path, bytes(data))))


def test_line_over_a_mebibyte_raises(tmp_path: Path) -> None:
    longest = b"a" * MAX_LINE_BYTES
    assert [len(line) for line in read_lines(write(tmp_path, b"b\n" + longest))] == [1, MAX_LINE_BYTES]
    path = write(tmp_path, b"b\n" + longest + b"a\nc")
    assert error_of(read_lines(path)).startswith(f"{path}:2: the line is longer than 1,048,576 bytes")
    path = write(tmp_path, gzip.compress(b"\n" + bytes(40 << 20)))
    assert error_of(read_lines(path)).startswith(f"{path}:2: the line is longer")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for lines in (10_000, 80_000):
        path = write(tmp_path, (b"a sentence, and then another one; " * 12 + b"\n") * lines)
        tracemalloc.start()
        assert sum(1 for _ in read_pairs(path, path)) == lines
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] < 20e6


def test_aligned_files_give_pairs(tmp_path: Path) -> None:
    source = write(tmp_path, "a\n\nc\n", "x.en")
    target = write(tmp_path, gzip.compress(b"d\ne\n\n"), "x.de.gz")
    assert list(read_pairs(source, target)) == [Row("a", "d"), Row("", "e"), Row("c", "")]


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (0, 2)])
def test_aligned_files_of_different_lengths_raise(tmp_path: Path, left: int, right: int) -> None:
    source, target = write(tmp_path, "a\n" * left, "s"), write(tmp_path, "a\n" * right, "t")
    assert error_of(read_pairs(source, target)) == (
        f"{source} and {target} have {left} and {right} lines: aligned files must have the same "
        f"number of lines (the first unpaired line is {min(left, right) + 1})"
    )


def test_segments_of_sgm_files_are_lines(tmp_path: Path) -> None:
    text = '<doc id="1">\n<p>\n<seg id="1"> A  &amp; B </seg>\n<seg id="2"></seg>\n</p>\n</doc>\n'
    assert list(read_text(write(tmp_path, text, "test.sgm"))) == ["A &amp; B", ""]
    with pytest.raises(DataError, match=r"test\.sgm:1: <seg> and </seg> must be on the same line"):
        list(read_text(write(tmp_path, "<seg>a\nb</seg>", "test.sgm")))


DEFAULTS = ("source", "target")
EN_DE: Any = {"source": "en", "target": "de", "defaults": DEFAULTS}
PERSONA, TURNS = ["i cook .", "i run ."], ["hi", "hello"]


@pytest.mark.parametrize(
    ("row", "names", "expected"),
    [
        ({"source": "a", "target": "b", "id": 1}, {}, Row("a", "b")),
        ({"source": "", "target": "", "references": []}, {}, Row("", "")),
        ({"source": "a", "target": "b", "references": ["b", "c"]}, {}, Row("a", "b", ("b", "c"))),
        ({"source": "a", "references": ["b", "c"]}, {}, Row("a", "b", ("b", "c"))),
        ({"article": "a", "title": "b"}, {"source": "article", "target": "title"}, Row("a", "b")),
        ({"article": "a", "title": "b"}, {"source": None, "target": "article"}, Row("", "a")),
        # persona and turns are joined without a source
        (
            {"persona": PERSONA, "turns": TURNS, "target": "b"},
            {},
            Row("i cook . i run . __eop__ hi __eot__ hello", "b"),
        ),
        ({"persona": [], "turns": TURNS, "target": "b"}, {}, Row("hi __eot__ hello", "b")),
        ({"persona": PERSONA[:1], "turns": [], "target": "b"}, {}, Row("i cook . __eop__", "b")),
        ({"source": "a", "turns": TURNS, "target": "b"}, {}, Row("a", "b")),
        # languages may be names of fields
        ({"en": "a", "de": "b"}, EN_DE, Row("a", "b")),
        ({"source": "a", "target": "b"}, EN_DE, Row("a", "b")),
        ({"source": "c", "en": "a", "target": "c", "de": "b"}, EN_DE, Row("a", "b")),
        ({"source": "a", "target": "b"}, EN_DE | {"source": "source"}, Row("a", "b")),
        ({"turns": ["a"], "references": ["b"]}, EN_DE | {"target": "target"}, Row("a", "b", ("b",))),
    ],
)
def test_fields_of_json_rows(tmp_path: Path, row: dict[str, Any], names: Any, expected: Row) -> None:
    path = write(tmp_path, json.dumps(row) + "\n", "rows.jsonl")
    assert list(read_rows(path, **names)) == [expected]


@share_tmp_path
@given(source=st.text(max_size=30), target=st.text(max_size=30), ascii_only=st.booleans())
def test_json_strings_keep_all_but_line_breaks(tmp_path: Path, source: str, target: str, ascii_only: bool) -> None:
    text = json.dumps({"source": source, "target": target}, ensure_ascii=ascii_only)
    path = write(tmp_path, gzip.compress(text.encode()), "rows.jsonl")
    assert list(read_rows(path)) == [Row(*(re.sub("\r\n|\r|\n", " ", text) for text in (source, target)))]


def test_line_breaks_in_json_are_counted(tmp_path: Path) -> None:
    counts = Counts()
    path = write(tmp_path, json.dumps({"source": "a\r\nb\nc", "target": "d\x00\u2028e"}))
    assert list(read_rows(path, counts=counts)) == [Row("a b c", "d\x00\u2028e")]
    assert counts.breaks == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a" "b"}', ":2:16: not JSON: Expecting ',' delimiter"),
        ("", ":2:1: not JSON: the line is empty"),
        ('["a", "b"]', ":2:1: each line must be one JSON object, not a list"),
        ('{"a":' * 100_000, ":2:1: cannot read the JSON"),
        ('{"source": ' + "9" * 5000 + "}", ":2:1: cannot read the JSON"),
        ('{"source": "a", "target": "a\\ud83d"}', ":2: field 'target' has a lone surrogate"),
        ('{"sorce": "a", "target": "b"}', ":2: no field 'source' (did you mean 'sorce'?); fields: 'sorce', 'target'"),
        ('{"source": "a"}', ":2: no field 'target'; fields: 'source'"),
        ("{}", ":2: no field 'target'; fields: none"),
        ('{"source": 3, "target": "b"}', ":2: field 'source' must be a string, not a number"),
        ('{"source": true, "target": "b"}', ":2: field 'source' must be a string, not true or"),
        ('{"source": "a", "target": null}', ":2: field 'target' must be a string, not null"),
        (
            '{"source": "a", "target": "b", "references": "b"}',
            ":2: field 'references' must be a list of strings, not a string",
        ),
        (
            '{"source": "a", "target": "b", "references": ["b", {}]}',
            ":2: field 'references[1]' must be a string, not an object",
        ),
        ('{"turns": [1], "target": "b"}', ":2: field 'turns[0]' must be a string, not a number"),
    ],
)
def test_malformed_json_lines_raise(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path, '{"source": "a", "target": "b"}\n' + line + "\n", "rows.jsonl")
    assert error_of(read_rows(path)).startswith(f"{path}{message}")


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    counts = Counts()
    path = write(tmp_path, '{"source": "\\ud83d\\ude00", "target": "a\\ud83d"}')
    assert list(read_rows(path, errors="replace", counts=counts)) == [Row("\U0001f600", "a\ufffd")]
    assert counts.replaced == 1


ROWS = [{"source": "a\nb", "target": "ü"}, {"source": "c", "references": ["d", "e"]}]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "document",
    [ROWS, {"data": ROWS}, {"version": "1", "tags": ["x"], "rows": ROWS, "more": {"a": []}}],
    ids=["array", "data", "other keys"],
)
@pytest.mark.parametrize("encode", [bytes, gzip.compress, lambda text: BOM.encode() + text])
def test_json_documents_have_the_rows_of_their_array(
    tmp_path: Path, document: Any, indent: int | None, encode: Any
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=indent is None)
    counts = Counts()
    path = write(tmp_path, encode(text.encode()), "rows.json")
    assert list(read_rows(path, counts=counts)) == [Row("a b", "ü"), Row("c", "d", ("d", "e"))]
    assert counts.breaks == 1


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("rows", [1, 2])
def test_json_lines_may_be_named_json(tmp_path: Path, rows: int, end: str) -> None:
    line = json.dumps({"source": "a", "target": "b", "contexts": ["c"]})
    path = write(tmp_path, (end or "\n").join([line] * rows) + end, "rows.json")
    assert list(read_rows(path)) == [Row("a", "b", (), ("c",))] * rows


def test_json_document_in_one_long_line_is_read(tmp_path: Path) -> None:
    """json.dump writes no line breaks, and the maximum of other lines is a mebibyte."""
    rows = [{"source": f"{number} " + "x" * 1000, "target": "y"} for number in range(3000)]
    path = write(tmp_path, json.dumps(rows), "rows.json")
    assert path.stat().st_size > MAX_LINE_BYTES
    assert [row.source.split()[0] for row in read_rows(path)] == [*map(str, range(3000))]


@pytest.mark.parametrize("indent", [None, 0])
def test_too_long_json_document_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None) -> None:
    monkeypatch.setattr("attnkit.data.formats.MAX_TEXT_BYTES", 100)
    path = write(tmp_path, json.dumps(ROWS * 4, indent=indent), "rows.json")
    with pytest.raises(DataError, match=r"rows\.json: is longer than 100 bytes.* jq -c"):
        list(read_rows(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"source": "a", "target": "b"},\n {"source": "a"}]', ": row 2: no field 'target'"),
        ('{"data": [{"source": "a", "target": "b"}, 3]}', ": row 2: must be a JSON object"),
        ('[{"source": "a", "target": "b"},\n {"source" 1}]', ":2:12: not JSON: Expecting ':'"),
        ('[{"source": "a", "target": "b"}', ":1:32: not JSON: Expecting ',' delimiter"),
        ('{"train": [{}], "test": [{}]}', ": has several arrays of objects ('train', 'test');"),
        ('{\n"source": "a"}', ": row 1: no field 'target'; fields: 'source'"),
        ("3", ": must be a JSON array of objects, not a number"),
        ("[" * 100_000, ":1:1: cannot read the JSON"),
    ],
)
def test_malformed_json_documents_raise(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text, "rows.json")
    assert error_of(read_rows(path)).startswith(f"{path}{message}")


@pytest.mark.parametrize("indent", [None, 2])
def test_json_array_in_a_jsonl_file_raises(tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path, json.dumps(ROWS, indent=indent), "rows.jsonl")
    with pytest.raises(DataError, match=r"jsonl:1:\d+: .* rename a file that is one JSON array to \*\.json"):
        list(read_rows(path))


def test_parlai_dialogues_have_a_row_for_each_reply(tmp_path: Path) -> None:
    text = """\
1 your persona: i cook .
2 your persona: i run .
3 hi\thello\t\thello|no
4 a\tb
5 c\td
6 e\tf
1 your persona: i sing .
2 __SILENCE__\thi !
"""
    rows = list(read_parlai(write(tmp_path, text)))
    assert [row.target for row in rows] == ["hello", "b", "d", "f", "hi !"]
    assert rows[0].source == "i cook . i run . __eop__ hi"
    assert rows[1].source == "i cook . i run . __eop__ hi __eot__ hello __eot__ a"
    assert rows[3].source == "i cook . i run . __eop__ a __eot__ b __eot__ c __eot__ d __eot__ e"
    assert rows[4].source == "i sing . __eop__"
    with pytest.raises(DataError, match=":1: must be a number, a turn, a tab and a reply"):
        list(read_parlai(write(tmp_path, "hello there\n")))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"english": "a", "deutsch": "b"},
            ":1: no field 'en' or 'source' for the source; the first row has 'english', 'deutsch': "
            "set data.source=english data.target=deutsch",
        ),
        (
            {"id": 3, "en": "a", "out": "b"},
            ":1: no field 'de' or 'target' for the target; the first row has 'en', 'out': set data.target=out",
        ),
        (
            {"id": 3, "words": ["a", "b"]},
            ":1: no field 'en' or 'source' for the source; the first row has no text fields: set "
            "data.source=... data.target=...",
        ),
    ],
)
def test_missing_field_names_the_key_to_set(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    path = write(tmp_path, json.dumps(row), "rows.jsonl")
    assert error_of(read_rows(path, **EN_DE)) == f"{path}{message}"
