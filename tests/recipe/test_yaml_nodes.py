"""Tests of reading YAML as text with positions; only the part of YAML that recipes need is accepted."""

import time
from pathlib import Path

import pytest
import yaml
from helpers.recipe_texts import GOOD, error_message, read, write

from attnkit.errors import MissingInputError, RecipeError
from attnkit.recipe import load, yaml_nodes
from attnkit.recipe.yaml_nodes import Mapping, read_file, read_value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "r.yaml:1:1: a recipe must be a mapping of keys to values"),
        ("# a\n", "r.yaml:1:1: a recipe must be a mapping of keys to values"),
        ("- a\n", "r.yaml:1:1: a recipe must be a mapping of keys to values"),
        ("a\n", "r.yaml:1:1: a recipe must be a mapping of keys to values"),
        ("a: &x 1\n", "r.yaml:1:4: anchors and aliases (x) are not allowed"),
        ("a: *x\n", "r.yaml:1:4: anchors and aliases (x) are not allowed"),
        ("a: !!python/object:os.system x", "r.yaml:1:4: tag tag:yaml.org,2002:python/object:os."),
        ("a: !!str 1\n", "r.yaml:1:4: tag tag:yaml.org,2002:str: tags are not allowed"),
        ("a: 1\n---\nb: 2\n", "r.yaml:2:1: a second YAML document; a recipe file contains one"),
        ("a: 1\nb: 2\na: 3\n", "r.yaml:3:1: key 'a' is given twice, first at r.yaml:1:1"),
        ("a: {b: 1, b: 2}\n", "r.yaml:1:11: key 'b' is given twice, first at r.yaml:1:5"),
        ("? [a]\n: b\n", "r.yaml:1:3: a key must be text, not a list or mapping"),
        ("a:\n\tb: 1\n", "r.yaml:2:1: not valid YAML: "),
        ("a: [1, 2\n", "r.yaml:2:1: not valid YAML: "),
        ("a: b: c\n", "r.yaml:1:5: not valid YAML: "),
        (b"a: 1\nb: \xe9\n", "r.yaml:2:4: byte 0xe9 is not UTF-8; save it as UTF-8"),
        ("a: 1".encode("utf-16"), "r.yaml:1:1: byte 0xff is not UTF-8"),
        ("a: 'x\x1b[31m'\n", "r.yaml:1:6: control character '\\x1b' is not allowed"),
        ("a: \x80\n", "r.yaml:1:4: control character '\\x80' is not allowed"),
        (b"a: 1\nb: \x00\n", "r.yaml:2:4: control character '\\x00' is not allowed"),
        ("[" * 33, "r.yaml:1:33: nested deeper than 32 levels, the maximum for a recipe"),
        ("a: [" + "x, " * 10_000 + "]", "more than 10000 keys and values, the maximum for a recipe"),
        ("#" * (256 * 1024 + 1), "r.yaml:1:1: the file is larger than 256 kB, the maximum for a recipe"),
    ],
)
def test_text_that_is_not_a_recipe_raises_with_a_position(text: str | bytes, message: str) -> None:
    found = error_message(text, kind=RecipeError)
    assert message in found
    assert found.startswith("r.yaml:")
    assert "\n" not in found


def test_byte_order_mark_and_windows_line_ends_are_accepted() -> None:
    plain = read(GOOD).variants
    assert read(b"\xef\xbb\xbf" + GOOD.encode()).variants == plain
    assert read(GOOD.replace("\n", "\r\n")).variants == plain


def test_tree_keeps_the_text_and_position_of_each_key_and_value() -> None:
    tree = read_file(write("task: no\ndata:\n  train: [1e-3, '1:30']\n"))
    place, value = tree.fields["task"]
    assert (str(place), str(value.place)) == ("r.yaml:1:1", "r.yaml:1:7")
    assert (value.text, value.plain) == ("no", True)
    items = tree.fields["data"][1].fields["train"][1].items
    assert [(item.text, item.plain) for item in items] == [("1e-3", True), ("1:30", False)]
    assert str(items[1].place) == "r.yaml:3:17"


@pytest.mark.parametrize("null", ["", "~", "null", "Null", "NULL"])
def test_quoted_null_is_text(null: str) -> None:
    tree = read_file(write(f"a: {null}\nb: '{null}'\n"))
    assert [node.null for _, node in tree.fields.values()] == [True, False]


def test_command_line_value_is_yaml_only_if_it_is_quoted_or_bracketed() -> None:
    assert read_value(" a: b #c ").text == "a: b #c"
    quoted = read_value("'a, b'")
    assert (quoted.text, quoted.plain) == ("a, b", False)
    assert isinstance(read_value("{a: [1]}"), Mapping)
    with pytest.raises(RecipeError, match=r"^command line: not valid YAML"):
        read_value("[1")
    with pytest.raises(RecipeError, match="^command line: anchors and aliases"):
        read_value("[&a 1]")


HOSTILE = {
    "brackets": "[" * 2**18,
    "braces": "{" * 2**18,
    "nested flow": "{a: " * 2**16,
    "dashes": "- " * 2**17,
    "questions": "? " * 2**17,
    "flat list": "a: [" + "x," * (2**17 - 4) + "]",
    "keys": "".join(f"k{i}: {i}\n" for i in range(4990)),
    "long keys": "".join(f"{'k' * 40}{i}: {i}\n" for i in range(4990)),
    "near keys": "train:\n" + "".join(f"  stesp{i}: {i}\n" for i in range(4900)),
    "options": "model: {attention: {name: dot, " + "".join(f"o{i}: 1, " for i in range(4900)) + "}}",
    "dotted": "".join(f"{'model.' * 7}a{i}: 1\n" for i in range(4900)),
    "dots": "." * 2**18 + ": 1",
    "one scalar": "a: '" + "x" * (2**18 - 8) + "'",
    "one number": "task: translation\ndata: {size: " + "9" * (2**18 - 40) + "}",
    "one name": "a" * (2**18 - 4) + ": 1",
    "folded": "a: >\n" + " x\n" * (2**16),
    "steps": "".join(" " * i + "a:\n" for i in range(700)),
    "variants": GOOD + "variants:\n" + "".join(f"  v{i}: {{train.lr: 1}}\n" for i in range(2400)),
    "hundred variants": GOOD
    + "variants:\n"
    + "".join(f"  v{i}: {{{', '.join(f'x{j}: 1' for j in range(40))}}}\n" for i in range(100)),
    "escapes": '"' + "\\x" * 2**17 + '"',
    "comment": "#" * 2**18,
    "percent": "%" * 2**18,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_of_maximum_size_raises_within_a_second(name: str) -> None:
    path = write(HOSTILE[name][: 256 * 1024])
    load(write(GOOD, "warm.yaml"))  # do not measure imports and caches
    start = time.process_time()
    with pytest.raises(RecipeError) as caught:
        load(path)
    assert time.process_time() - start < 1.0
    assert len(str(caught.value)) < 20_000


def test_python_parser_gives_the_same_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of libyaml is not in every build of PyYAML."""
    path = write("a: {b: [1, 'x', \"y\"], c: ~}\nd:\n  - e\n  - f: |\n      text\n")
    fast = read_file(path)
    monkeypatch.setattr(yaml_nodes, "_LOADER", yaml.SafeLoader)
    assert read_file(path) == fast
    with pytest.raises(RecipeError, match=r"r\.yaml:1:33: nested deeper"):
        read_file(write("[" * 2**18))


@pytest.mark.parametrize(
    ("name", "message"), [("folder", "is a folder"), ("/dev/zero", "not a regular file"), ("a\0b", "not a file name")]
)
def test_only_regular_files_are_read(name: str, message: str) -> None:
    Path("folder").mkdir()
    with pytest.raises(MissingInputError, match=message):
        read_file(Path(name))
