"""Readers of lines, aligned files, JSON lines and dialogues."""

import gzip
import json
import lzma
import os
import re
import subprocess
import tracemalloc
import zlib
from collections import deque
from collections.abc import Callable
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
per_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, data: bytes | str, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def fails(path: Path, **options: str) -> str:
    with pytest.raises(DataError) as caught:
        list(read_lines(path, **options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def json_fails(folder: Path, line: str) -> str:
    path = write(folder, '{"source": "a", "target": "b"}\n' + line + "\n", "rows.jsonl")
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    return str(caught.value).removeprefix(str(path))


@per_example
@given(lines=st.lists(LINE, max_size=20), last=st.booleans(), packed=st.booleans())
def test_n_lines_of_any_text_are_n_lines(tmp_path: Path, lines: list[str], last: bool, packed: bool) -> None:
    text = "".join(line + "\n" for line in lines)
    if lines and lines[-1] and not last:
        text = text[:-1]
    data = text.encode()
    path = write(tmp_path, gzip.compress(data) if packed else data)
    expected = [line.removesuffix("\r") for line in lines]
    if lines and not text.endswith("\n"):
        expected[-1] = lines[-1]
    if lines and lines[0].startswith("\ufeff"):
        expected[0] = expected[0][1:]
        if len(lines) == 1 and text == "\ufeff":
            expected = []
    assert list(read_lines(path)) == expected


@per_example
@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_with_replacement_or_refused_with_a_place(tmp_path: Path, data: bytes) -> None:
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


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    text = "a\u2028b\x85c\x0bd\x0ce\x1cf\rg\x00\x7f\t"
    assert list(read_lines(write(tmp_path, text + "\n" + text))) == [text, text]


def test_empty_lines_stay(tmp_path: Path) -> None:
    assert list(read_lines(write(tmp_path, "\n\na\n\n"))) == ["", "", "a", ""]
    assert list(read_lines(write(tmp_path, ""))) == []


def test_crlf_and_byte_order_mark_are_removed(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfa\r\nb\xef\xbb\xbf\r\n\r\n")
    assert list(read_lines(path)) == ["a", "b\ufeff", ""]


def test_malformed_utf8_is_refused_with_line_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfok\nsch\xf6n\n")
    assert fails(path).startswith(f"{path}:2:4: malformed UTF-8 (byte 0xf6); save the file as")
    path = write(tmp_path, b"\xef\xbb\xbfa\xff")
    assert fails(path).startswith(f"{path}:1:5: malformed UTF-8 (byte 0xff)")


def test_the_place_of_malformed_utf8_is_right_in_any_block(tmp_path: Path) -> None:
    path = write(tmp_path, b"0123456789abcde\n" * 200_000 + b"abc\xffd\n")
    assert fails(path).startswith(f"{path}:200001:4: malformed UTF-8")


def test_malformed_utf8_is_replaced_and_counted_when_asked(tmp_path: Path) -> None:
    counts = Counts()
    path = write(tmp_path, "\ufffd".encode() + b"a\xffb\xc3\n\xfe")
    assert list(read_lines(path, "replace", counts)) == ["\ufffda\ufffdb\ufffd", "\ufffd"]
    assert counts.replaced == 3


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("text".encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
        (b"BZh91AY&SY\xff", "bzip2 data; unpack it"),
        (b"\x28\xb5\x2f\xfd\xff", "zstd data"),
    ],
)
def test_other_kinds_of_files_are_named(tmp_path: Path, data: bytes, what: str) -> None:
    assert what in fails(write(tmp_path, data))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed_text_is_known_by_its_bytes_not_its_name(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    packed = pack(b"a\nb\n") + pack(b"c")
    assert list(read_lines(write(tmp_path, packed, "text"))) == ["a", "b", "c"]
    assert list(read_lines(write(tmp_path, b"a\nb\n", "text.gz"))) == ["a", "b"]
    long = b"".join(b"%d\n" % i for i in range(600_000))
    path = write(tmp_path, pack(long[: 1 << 21]) + pack(long[1 << 21 :]), "long")
    assert list(read_lines(path)) == list(map(str, range(600_000)))


@pytest.mark.parametrize("fault", ["cut", "flipped", "header", "tail"])
@pytest.mark.parametrize(("kind", "pack"), [("gzip", gzip.compress), ("xz", lzma.compress)])
def test_damaged_packed_text_is_refused(tmp_path: Path, kind: str, pack: Callable[[bytes], bytes], fault: str) -> None:
    packed = bytearray(pack(os.urandom(5000).hex().encode()))
    if fault == "cut":
        del packed[-9:]
    elif fault == "tail":
        packed += b"junk"
    else:
        packed[3000 if fault == "flipped" else {"gzip": 2, "xz": 6}[kind]] ^= 0x55
    path = write(tmp_path, bytes(packed))
    assert fails(path).startswith(f"{path}: damaged {kind} data (")


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
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


def test_xz_data_that_needs_much_memory_is_refused(tmp_path: Path) -> None:
    filters = [
        {"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3, "nice_len": 32}
    ]
    small = lzma.compress(b"a\n", filters=[filters[0] | {"dict_size": 1 << 20}])
    assert list(read_lines(write(tmp_path, small))) == ["a"]
    monstrous = bytearray(small)
    # The size of the dictionary stands in the header of the block, which its CRC-32 covers.
    head = 12
    size = (monstrous[head] + 1) * 4
    place = monstrous.index(b"\x21\x01", head, head + size) + 2
    monstrous[place] = 38
    monstrous[head + size - 4 : head + size] = zlib.crc32(bytes(monstrous[head : head + size - 4])).to_bytes(
        4, "little"
    )
    assert "damaged xz data (Memory usage limit" in fails(write(tmp_path, bytes(monstrous)))


def test_a_line_over_a_mebibyte_is_refused(tmp_path: Path) -> None:
    longest = b"a" * MAX_LINE_BYTES
    assert [len(line) for line in read_lines(write(tmp_path, b"b\n" + longest))] == [1, MAX_LINE_BYTES]
    path = write(tmp_path, b"b\n" + longest + b"a\nc")
    assert fails(path).startswith(f"{path}:2: the line is longer than 1,048,576 bytes")
    path = write(tmp_path, gzip.compress(b"\n" + bytes(40 << 20)))
    assert fails(path).startswith(f"{path}:2: the line is longer")


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
def test_ragged_files_are_refused_with_both_counts(tmp_path: Path, left: int, right: int) -> None:
    source, target = write(tmp_path, "a\n" * left, "s"), write(tmp_path, "a\n" * right, "t")
    with pytest.raises(DataError) as caught:
        list(read_pairs(source, target))
    assert str(caught.value) == (
        f"{source} and {target} have {left} and {right} lines: aligned files must have the same "
        f"number of lines (the first unpaired line is {min(left, right) + 1})"
    )


def test_segments_of_sgm_files_are_lines(tmp_path: Path) -> None:
    text = '<doc id="1">\n<p>\n<seg id="1"> A  &amp; B </seg>\n<seg id="2"></seg>\n</p>\n</doc>\n'
    assert list(read_text(write(tmp_path, text, "test.sgm"))) == ["A &amp; B", ""]
    with pytest.raises(DataError, match=r"test\.sgm:1: <seg> and </seg> must be on the same line"):
        list(read_text(write(tmp_path, "<seg>a\nb</seg>", "test.sgm")))


def test_json_rows_are_read_with_references(tmp_path: Path) -> None:
    rows = [
        {"source": "a", "target": "b", "id": 1},
        {"source": "c", "target": "d", "references": ["d", "e"]},
        {"source": "f", "references": ["g", "h"]},
        {"source": "", "target": "", "references": []},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)), "rows.jsonl")
    assert list(read_rows(path)) == [Row("a", "b"), Row("c", "d", ("d", "e")), Row("f", "g", ("g", "h")), Row("", "")]


@per_example
@given(source=st.text(max_size=30), target=st.text(max_size=30), ascii_only=st.booleans())
def test_any_strings_survive_json_but_for_line_breaks(
    tmp_path: Path, source: str, target: str, ascii_only: bool
) -> None:
    text = json.dumps({"source": source, "target": target}, ensure_ascii=ascii_only)
    path = write(tmp_path, gzip.compress(text.encode()), "rows.jsonl")
    source, target = (re.sub("\r\n|\r|\n", " ", text) for text in (source, target))
    assert list(read_rows(path)) == [Row(source, target)]


def test_line_breaks_in_json_are_counted(tmp_path: Path) -> None:
    counts = Counts()
    path = write(tmp_path, json.dumps({"source": "a\r\nb\nc", "target": "d\x00\u2028e"}))
    assert list(read_rows(path, counts=counts)) == [Row("a b c", "d\x00\u2028e")]
    assert counts.breaks == 2


def test_half_a_surrogate_pair_in_json_is_refused_or_replaced(tmp_path: Path) -> None:
    line = '{"source": "\\ud83d\\ude00", "target": "a\\ud83d"}'
    assert json_fails(tmp_path, line).startswith(":2: field 'target' has a lone surrogate")
    counts = Counts()
    path = write(tmp_path, line)
    assert list(read_rows(path, errors="replace", counts=counts)) == [Row("\U0001f600", "a\ufffd")]
    assert counts.replaced == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a" "b"}', ":2:16: not JSON: Expecting ',' delimiter"),
        ("", ":2:1: not JSON: the line is empty"),
        ('["a", "b"]', ":2:1: each line must be one JSON object, not a list"),
        ('{"a":' * 100_000, ":2:1: cannot read the JSON"),
        ('{"source": ' + "9" * 5000 + "}", ":2:1: cannot read the JSON"),
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
def test_malformed_rows_are_refused_with_their_place(tmp_path: Path, line: str, message: str) -> None:
    assert json_fails(tmp_path, line).startswith(message)


ROWS = [{"source": "a\nb", "target": "ü"}, {"source": "c", "references": ["d", "e"]}]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "form",
    [
        lambda rows: rows,
        lambda rows: {"data": rows},
        lambda rows: {"version": "1", "tags": ["x"], "rows": rows, "more": {"a": []}},
    ],
    ids=["array", "data", "beside others"],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda text: BOM.encode() + text])
def test_a_json_document_has_the_rows_of_its_array(tmp_path: Path, form: Any, indent: int | None, pack: Any) -> None:
    text = json.dumps(form(ROWS), indent=indent, ensure_ascii=indent is None)
    counts = Counts()
    path = write(tmp_path, pack(text.encode()), "rows.json")
    assert list(read_rows(path, counts=counts)) == [Row("a b", "ü"), Row("c", "d", ("d", "e"))]
    assert counts.breaks == 1


@pytest.mark.parametrize("ends", ["", "\n", "\r\n"])
@pytest.mark.parametrize("rows", [1, 2])
def test_json_lines_may_be_named_json(tmp_path: Path, rows: int, ends: str) -> None:
    row = {"source": "a", "target": "b", "contexts": ["c"]}
    path = write(tmp_path, (ends or "\n").join([json.dumps(row)] * rows) + ends, "rows.json")
    assert list(read_rows(path)) == [Row("a", "b", (), ("c",))] * rows


def test_a_document_of_one_long_line_is_read(tmp_path: Path) -> None:
    """json.dump writes no line breaks, and lines have at most a mebibyte."""
    rows = [{"source": f"{number} " + "x" * 1000, "target": "y"} for number in range(3000)]
    path = write(tmp_path, json.dumps(rows), "rows.json")
    assert path.stat().st_size > MAX_LINE_BYTES
    assert [row.source[:6].split()[0] for row in read_rows(path)] == [*map(str, range(3000))]


def test_a_document_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.data.formats.MAX_TEXT_BYTES", 100)
    for indent in (None, 0):
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
def test_faults_of_a_document_are_named_by_row_or_place(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text, "rows.json")
    with pytest.raises(DataError) as caught:
        list(read_rows(path))
    assert str(caught.value).removeprefix(str(path)).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_in_a_file_of_json_lines_is_told_its_name(tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path, json.dumps(ROWS, indent=indent), "rows.jsonl")
    with pytest.raises(DataError, match=r"jsonl:1:\d+: .* rename a file that is one JSON array to \*\.json"):
        list(read_rows(path))


def test_other_columns_may_be_source_and_target(tmp_path: Path) -> None:
    path = write(tmp_path, '{"article": "a", "title": "b"}')
    assert list(read_rows(path, source="article", target="title")) == [Row("a", "b")]
    assert list(read_rows(path, source=None, target="article")) == [Row("", "a")]


def test_persona_and_turns_are_joined_when_there_is_no_source(tmp_path: Path) -> None:
    rows = [
        {"persona": ["i cook .", "i run ."], "turns": ["hi", "hello"], "target": "bye"},
        {"persona": [], "turns": ["hi", "hello"], "target": "bye"},
        {"persona": ["i cook ."], "turns": [], "target": "hi"},
        {"source": "kept", "turns": ["hi"], "target": "bye"},
    ]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)))
    assert [row.source for row in read_rows(path)] == [
        "i cook . i run . __eop__ hi __eot__ hello",
        "hi __eot__ hello",
        "i cook . __eop__",
        "kept",
    ]


def test_dialogues_of_parlai_give_a_row_for_each_reply(tmp_path: Path) -> None:
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
    assert rows[3].source == ("i cook . i run . __eop__ a __eot__ b __eot__ c __eot__ d __eot__ e")
    assert rows[4].source == "i sing . __eop__"
    with pytest.raises(DataError, match=":1: must be a number, a turn, a tab and a reply"):
        list(read_parlai(write(tmp_path, "hello there\n")))


@pytest.mark.parametrize(
    ("source", "target", "line"),
    [
        ("en", "de", {"en": "a", "de": "b"}),
        ("en", "de", {"source": "a", "target": "b"}),  # languages, not names of fields
        ("en", "de", {"source": "c", "en": "a", "target": "c", "de": "b"}),
        ("source", "de", {"source": "a", "target": "b"}),
        ("en", "target", {"turns": ["a"], "references": ["b"]}),
    ],
)
def test_languages_are_told_from_names_of_fields(
    tmp_path: Path, source: str, target: str, line: dict[str, Any]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line) + "\n")
    (row,) = read_rows(path, source=source, target=target, defaults=("source", "target"))
    assert row[:2] == ("a", "b")


@pytest.mark.parametrize(
    ("line", "message"),
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
def test_a_field_that_is_not_there_names_the_key_to_set(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(DataError) as caught:
        list(read_rows(path, source="en", target="de", defaults=("source", "target")))
    assert str(caught.value) == f"{path}{message}"
