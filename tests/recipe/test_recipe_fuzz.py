"""Fuzz tests of loading recipes: each input gives a recipe or an error with a position, no other exception.

Values are never silently wrong: a value from the file equals the text at its origin.
"""

import random
import re
from pathlib import Path

import pytest
import yaml
from helpers.recipe_texts import GOOD, write
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnkit.errors import MissingInputError, RecipeError
from attnkit.recipe import RecipeFile, dump, flat, load, load_resolved, shipped
from attnkit.text import safe_text

SEED = """\
# a recipe that uses most of the language
task: translation
data: {corpus: toy-translation, source: en, target: de, max_length: 64, size: 500}
tokenizer:
  type: bpe
  size: 800
  special: ["<sep>", no]
model:
  width: 64
  layers: {encoder: 2, decoder: 2}
  heads: 4
  attention: {encoder: linear, decoder: {name: synthesizer-random, trainable: false}}
train:
  steps: 100
  lr: 1e-3
  betas: [0.9, 0.98]
  seeds: [1, 2]
  compile: false
search: {method: beam, beam: 4, length_penalty: 0.6}
eval: {metrics: [bleu, chrf]}
variants:
  plain:
  dotted: {train.lr: 2e-3, model.attention: scaled-dot}
  nested: {train: {steps: 50}, model: {layers: 1}}
baseline: plain
"""
VALUES = (
    *("", "'", '"', "[1,", "- a", "? a", ": b", "&a 1", "!!int 3", "!x y", "# x", "\\", "\t", "9" * 400, "x" * 300),
    *("~", "null", "0", "-1", "1e309", ".nan", "-.inf", "0x10", "0o7", "1_000", "1:30", "3.0", "1.5", "2024-01-01"),
    *("yes", "no", "on", "True", "true", "linear", "{name:linear}", "[linear]", "[]", "{}", "[[[]]]"),
    *("*a", "|", ">-", "@", "`", "%", "<<", "=", "---", "..."),
    *("{a: {b: c}}", "{name: linear}", "{name: dot, name: dot}"),
    *("\u2028", "\x07", "\x9b31m", "\u202e", "\ufeff", "\U0001f600"),
)
WORDS = re.compile(r"[^\s:,\[\]{}]+")
PLACED = re.compile(r"(f\.yaml:\d+:\d+|command line): \S")


def mutated(number: int) -> bytes:
    """Return the recipe with one to three faults that depend only on the number."""
    draw = random.Random(number)
    text = SEED
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        text = draw.choice(FAULTS)(text, draw)
    raw = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.1:
        at = draw.randrange(len(raw) + 1)
        raw = raw[:at] + bytes([draw.randrange(128, 256)]) + raw[at:]
    return raw


def _new_word(text: str, draw: random.Random) -> str:
    word = draw.choice(list(WORDS.finditer(text)) or [re.match("", text)])
    return text[: word.start()] + draw.choice(VALUES) + text[word.end() :]


def _other_word(text: str, draw: random.Random) -> str:
    words = list(WORDS.finditer(text))
    if len(words) < 2:
        return text + "x"
    old, new = draw.sample(words, 2)
    return text[: old.start()] + new.group() + text[old.end() :]


def _typo(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text) + 1)
    return text[:at] + draw.choice("aZ0:{}[],'\"#&*!|>%@\t\n -.\x00\u202e\ud800") + text[at:]


def _cut(text: str, draw: random.Random) -> str:
    start = draw.randrange(len(text) + 1)
    return text[:start] + text[start + draw.choice((1, 2, 5, 20, len(text))) :]


def _line(text: str, draw: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at = draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        lines.insert(draw.randrange(len(lines)), lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at] = " " * draw.randrange(5) + lines[at].lstrip(" ")
    else:
        lines[at] = lines[at].rstrip("\n")
    return "".join(lines)


FAULTS = (_new_word, _new_word, _other_word, _typo, _cut, _line)


def outcome(path: Path, *overrides: str) -> RecipeFile | None:
    """Return the recipe, or None after an error of which every line was checked."""
    try:
        return load(path, overrides)
    except (MissingInputError, RecipeError) as error:
        lines = str(error).split("\n")
        for line in lines:
            assert PLACED.match(line), line
            assert harmless(line), line
            assert len(line) < 500, line
        if isinstance(error, MissingInputError):
            assert re.search(r": extends: (no )?recipe '", lines[0])
    return None


def harmless(line: str) -> bool:
    """Whether a terminal can show a line unchanged."""
    return line == safe_text(line) and not set(line) & set("\n\t")


def check_meaning(file: RecipeFile, text: str) -> None:
    """Check that every value from the file that is one word equals the text at its origin."""
    lines = re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text.removeprefix("\ufeff"))
    for name, recipe in file.variants.items():
        values = flat(recipe)
        for key, origin in file.origins[name].items():
            if not origin.startswith("f.yaml:"):
                continue
            _, line, column = origin.split(":")
            rest = lines[int(line) - 1][int(column) - 1 :]
            if not (found := re.match(r"[^\s,\]}{\['\"#|>]+", rest)):
                continue
            word = found.group()
            try:
                same = float(word) == float(values[key])
            except ValueError:
                same = values[key].startswith(word) or (word, values[key]) == ("~", "null")
            assert same, (key, values[key], rest)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("start", range(0, 500, 100))
def test_mutated_recipe_is_read_correctly_or_raises_with_a_position(start: int) -> None:
    loaded = 0
    for number in range(start, start + 100):
        raw = mutated(number)
        if file := outcome(write(raw, "f.yaml")):
            loaded += 1
            check_meaning(file, raw.decode())
            for recipe in file.variants.values():
                assert load_resolved(write(dump(recipe), "again.yaml")) == recipe
    assert 0 < loaded < 60


def test_recipe_without_mutations_is_read_correctly() -> None:
    check_meaning(load(write(SEED, "f.yaml")), SEED)


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
LEAVES = st.sampled_from(VALUES) | st.integers() | st.floats() | st.booleans() | st.none() | ANY_TEXT
SECTIONS = ("task", "data", "model", "train", "variants", "baseline", "extends")
INNER = ("lr", "attention", "encoder", "name", "layers", "corpus", "train.lr", "seeds")
KEYS = st.sampled_from((*SECTIONS, *INNER)) | ANY_TEXT
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
)


@settings(derandomize=True)
@given(ANY_TEXT)
def test_any_text_is_a_recipe_or_raises(text: str) -> None:
    outcome(write(text, "f.yaml"))


@settings(derandomize=True)
@given(st.dictionaries(KEYS, TREES, max_size=5), st.booleans())
@example({" ": []}, False)
@example({" 0": []}, False)
def test_any_tree_is_a_recipe_or_raises(tree: dict[str, object], flow: bool) -> None:
    tree = {"task": "translation", "data": {"corpus": "toy-translation"}} | tree
    text = yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True)
    outcome(write(text, "f.yaml"))


@settings(derandomize=True)
@given(KEYS, st.sampled_from(VALUES) | ANY_TEXT, st.booleans())
def test_any_override_is_accepted_or_raises(key: str, value: str, equals: bool) -> None:
    outcome(write(GOOD, "f.yaml"), f"{key}{'=' * equals}{value}")


@settings(derandomize=True)
@given(st.text(max_size=60).filter(lambda name: name not in shipped()))
def test_any_name_that_is_not_shipped_raises(name: str) -> None:
    with pytest.raises((MissingInputError, RecipeError)) as caught:
        load(name)
    assert harmless(str(caught.value))
