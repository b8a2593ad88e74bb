"""Tests of the error messages of recipes: one line per problem with position, key, fault and remedy."""

import pytest
from helpers.recipe_texts import GOOD, error_message, parse_messages, read, write

from attnkit.errors import RecipeError
from attnkit.recipe import load
from attnkit.recipe.common_names import KEYS, MECHANISMS
from attnkit.recipe.mechanism_registry import facts
from attnkit.recipe.settings import all_keys

WRONG = """
train: {setps: 3}
  3:9: train.setps: unknown key; did you mean train.steps?
train: {width: 3}
  3:9: train.width: unknown key: this key belongs under model
steps: 3
  3:1: steps: unknown key: this key belongs under train
trian: {}
  3:1: trian: unknown key; did you mean train?
train.lr.x: 3
  3:1: train.lr.x: unknown key: train.lr has no keys below it; set train.lr itself
train: {steps:3}
  3:9: train.steps:3: unknown key; a space must follow the colon: steps: 3
train: {zzz: 3}
  3:9: train.zzz: unknown key; keys under train: steps, batch_tokens,
train: {steps: 0}
  3:16: train.steps: must be a whole number >= 1, got '0'; did you mean 1?
eval: {margin: -1}
  3:16: eval.margin: must be a number >= 0, got '-1'; did you mean 0.0?
train: {steps: 1e5}
  3:16: train.steps: must be a whole number >= 1, got '1e5'; did you mean 100000?
train: {steps: many}
  3:16: train.steps: must be a whole number >= 1, got 'many'; the default is 1000
train: {steps: }
  3:16: train.steps: must be a whole number >= 1, got nothing; the default is 1000
train: {steps: 9999999999}
  3:16: train.steps: must be a whole number >= 1, got '9999999999'; did you mean 2147483647?
train: {lr: .nan}
  3:13: train.lr: must be a number > 0, got '.nan'; the default is 0.001
train: {lr: 1:30}
  3:13: train.lr: must be a number > 0, got '1:30'; the default is 0.001
train: {compile: yes}
  3:18: train.compile: must be true or false, got 'yes'; did you mean true?
train: {precision: bf61}
  3:20: train.precision: must be one of auto, fp32, bf16, fp16, got 'bf61'; did you mean bf16?
train: {betas: [0.9, 2]}
  3:16: train.betas: must be a list of 2: [number >= 0 and < 1, number >= 0 and < 1], got [0.9, 2]; the default is
  [0.9, 0.98]
train: {seeds: 3}
  3:16: train.seeds: must be a list of seeds, got '3'; write [1] for one training, or [1, 2, 3] for three
train: {seeds: []}
  3:16: train.seeds: must be a non-empty list: [whole number >= 0, ...], got []; the default is [1]
train: 3
  3:8: train: must be a mapping of keys, such as `steps: ...`, got '3'
train: {lr: 1}
train.lr: 2
  4:1: train.lr: is set twice, first at r.yaml:3:9; keep one of them
model: {attention: dot}
model.attention.cross: linear
  4:1: model.attention.cross: is set twice, first at r.yaml:3:9; keep one of
model: {layers: {encoder: 1, decode: 2}}
  3:30: model.layers.decode: unknown key; did you mean model.layers.decoder?
variants: 3
  3:11: variants: must be a mapping of names to overrides
variants: {a: 3}
  3:15: variants.a: must be a mapping of overrides, such as `train.lr: 1e-3`, got '3'
variants: {../a: {}}
  3:12: variants: '../a' cannot name a run folder; use at most 64 ASCII letters, digits
variants: {a: {variants: {}}}
  3:16: variants: is allowed only at the top level of a recipe file
variants: {small: {}, large: {}}
baseline: smal
  4:11: baseline: must be the name of a variant, got 'smal'; did you mean small?
"""
"""Lines that follow those of `GOOD`, and their error message."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((GOOD + text, f"r.yaml:{message}") for text, message in parse_messages(WRONG)),
        (
            f"{GOOD}train: {{steps: {'9' * 5000}}}\n",
            f"r.yaml:3:16: train.steps: must be a whole number >= 1, got '{'9' * 36}...{'9' * 9}'",
        ),
        (GOOD + "eval: {metrics: bleu}\n", "got 'bleu'; did you mean [bleu]?"),
        (
            "task: translation\n",
            "r.yaml:1:1: data: is missing; name a corpus, such as `data: {corpus: toy-translation}`, or files",
        ),
        (
            "data: {corpus: toy-translation}\n",
            "r.yaml:1:1: task: is missing; choose from translation, summarization, dialogue,",
        ),
        (
            GOOD.replace("translation\n", "translating\n", 1),
            "r.yaml:1:7: task: must be one of translation, summarization, dialogue,"
            " language-modeling, question-answering, classification, recall, tagging, got"
            " 'translating'; did you mean translation?",
        ),
        (
            GOOD + "variants: {" + ", ".join(f"v{i}" for i in range(101)) + "}\n",
            "r.yaml:3:11: variants: 101 variants are too many; the maximum is 100",
        ),
    ],
)
def test_wrong_value_raises_with_position_and_remedy(text: str, message: str) -> None:
    found = error_message(text, kind=RecipeError)
    assert found.startswith("r.yaml:")
    assert message in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.setps=3", "command line: train.setps: unknown key; did you mean train.steps?"),
        ("train.steps", "command line: 'train.steps' must be KEY=VALUE, such as train.steps=200"),
        ("train.steps=", "command line: train.steps: must be a whole number >= 1, got nothing"),
        ("train.seeds=3", "command line: train.seeds: must be a list of seeds, got '3'; write [1]"),
        ("train.seeds=1,x", "command line: train.seeds: must be a non-empty list: [whole number >= 0"),
        ("train.seeds=1,-2", "[whole number >= 0, ...], got '1,-2'; did you mean [1, 0]?"),
        ("variants.c.train.lr=3", "command line: variants.c.train.lr: no such variant; choose"),
        ("baseline=x", "command line: baseline: must be the name of a variant, got 'x'"),
        ("a..b=3", "command line: a..b: unknown key; top-level keys: task, data,"),
        ("train.lr=[1", "command line: not valid YAML: "),
        ("model.attention.encoder.a.b=3", "encoder.a.b: unknown key: model.attention.encoder has"),
        ("\x1b[31m=3", "command line: \\x1b[31m: unknown key"),
        ("train.lr=\u202e", "command line: train.lr: must be a number > 0, got '\\u202e'"),
    ],
)
def test_wrong_override_raises_with_the_position_command_line(override: str, message: str) -> None:
    found = error_message(GOOD, override, kind=RecipeError)
    assert message in found
    assert found.startswith("command line: ")
    assert found.isprintable()


def test_all_problems_are_listed_in_the_order_of_the_file() -> None:
    text = "task: translation\nmodel: {width: x, heds: 2}\ndata: {corpus: 3, rows: -1}\n"
    lines = error_message(text, "train.lr=x").splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["command line", "train.lr"],
        ["r.yaml:2:16", "model.width"],
        ["r.yaml:2:19", "model.heds"],
        ["r.yaml:3:25", "data.rows"],
    ]


def test_problem_names_its_variants_unless_all_have_it() -> None:
    text = GOOD + "train: {lr: x}\nvariants: {a: {}, b: {train.steps: 0}, c: {}}\n"
    first, second = error_message(text).splitlines()
    assert first.endswith("got 'x'; the default is 0.001")
    assert second.endswith("did you mean 1? (variant b)")
    text = GOOD + "train: {lr: x}\nvariants: {a: {}, b: {train.lr: 1}, c: {}}\n"
    assert error_message(text).endswith("the default is 0.001 (variant a, c)")


def test_first_twenty_problems_are_listed_and_the_others_counted() -> None:
    text = GOOD + "train: {" + ", ".join(f"x{i}: 1" for i in range(25)) + "}\n"
    lines = error_message(text).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "r.yaml:3:151: and 5 more problems"


def test_hostile_text_is_escaped_and_shortened() -> None:
    text = GOOD + f"train: {{lr: '\\e]52;{'x' * 500}', \"\\u202e\\n\": 1}}\n"
    for line in error_message(text).splitlines():
        assert line.isprintable()
        assert len(line) < 250


def test_messages_contain_the_path_as_given() -> None:
    path = write(GOOD + "x: 1\n", "sub/r.yaml")
    with pytest.raises(RecipeError, match=r"^sub/r\.yaml:3:1: x: unknown key"):
        load(path)
    with pytest.raises(RecipeError, match=rf"^{path.absolute()}:3:1: x: unknown key"):
        load(path.absolute())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.attention=softmax", "called 'softmax'; write scaled-dot"),
        ("model.attention.encoder=Retention", "called 'Retention'; write decay"),
        ("model.attention=synthesizer", "write synthesizer-dense or synthesizer-random"),
        ("model.attention=my-word", "called 'my-word'; add --plugin my_word.py"),
        ("epochs=3", "epochs: unknown key; write train.steps, which counts updates"),
        ("train.learning_rate=1", "train.learning_rate: unknown key; write train.lr"),
        ("train.seed=1", "train.seed: unknown key; write train.seeds, a list such as [1]"),
    ],
)
def test_name_of_another_library_raises_with_the_name_in_attnkit(override: str, message: str) -> None:
    write("", "my_word.py")
    assert message in error_message(GOOD, override, kind=RecipeError)


def test_suggestions_for_names_of_other_libraries_are_valid() -> None:
    for suggestion in MECHANISMS.values():
        for text in suggestion.split(" or "):
            name = text.strip("{}").removeprefix("name: ").partition(",")[0]
            role = "encoder" if facts(name).encoder else "decoder"
            parts = ", parts: [dot, scaled-dot]" if facts(name).composite else ""
            attention = f"{{name: {name}{parts}}}" if name == text else text
            read(GOOD, f"model.attention={{{role}: {attention}}}", "model.heads=8")
    keys = {".".join(key) for key in all_keys()} | {"model.attention", "model.layers"}
    assert {suggestion.partition(":")[0].partition(",")[0] for suggestion in KEYS.values()} <= keys
