"""Tests of marked positions: generated rows, predicted positions, metrics and errors."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cli import run_cli

from attnkit.data.batch import collate
from attnkit.data.objectives import check_marked, mark, objective_of
from attnkit.data.rows import Row
from attnkit.data.synthetic.marked import SYMMETRIC, MarkedRows
from attnkit.data.tokenizer import PAD, Tokenizer
from attnkit.errors import DataError
from attnkit.models import PositionTagger, build_for
from attnkit.recipe import corpus_cards
from attnkit.recipe.schema import Recipe, TokenizerConfig
from attnkit.scoring.teacher_forced import encode_rows, teacher_forced_scores

CORPORA = [name for name in corpus_cards.names() if corpus_cards.load(name).marked]


def generator(name: str) -> MarkedRows:
    marked = corpus_cards.load(name).marked
    assert marked is not None
    return MarkedRows(name, marked)


def rows(name: str, split: str = "test", size: int = 20, length: int = 0) -> list[list[list[str]]]:
    """Return the words of source and target of each row."""
    return [[row.source.split(), row.target.split()] for row in generator(name).rows(split, size, 1, length)]


@pytest.mark.parametrize("name", CORPORA)
def test_every_token_has_a_target_and_every_row_a_marked_one(name: str) -> None:
    words = set(generator(name).words.split())
    for split in ("train", "test"):
        for source, target in rows(name, split, 5):
            assert len(source) == len(target)
            assert {*source, *target} <= words
            assert any(token != "_" for token in target)
    assert rows(name) == rows(name)
    assert rows(name, "train") != rows(name)


def test_parity_is_marked_at_the_end_and_test_rows_are_longer() -> None:
    for split, low, high in (("train", 3, 40), ("test", 40, 256)):
        for source, target in rows("toy-parity", split):
            assert low <= len(source) <= high
            assert target == ["_"] * (len(source) - 1) + [str(1 + source.count("2") % 2)]
    assert {len(source) for source, _ in rows("toy-parity", length=64)} == {64}


def test_reversal_targets_and_lengths() -> None:
    for split, longest in (("train", 25), ("test", 30)):
        pairs = rows("toy-reversal", split, 300)
        assert all(target == source[::-1] for source, target in pairs)
        assert {len(source) for source, _ in pairs} == {*range(1, longest + 1)}


def test_s3_targets_are_products_from_the_first_permutation_on() -> None:
    for source, target in rows("toy-s3"):
        order = [0, 1, 2]
        for step, answer in zip(source, target, strict=True):
            order = [order[place] for place in SYMMETRIC[int(step)]]
            assert SYMMETRIC[int(answer)] == tuple(order)


@pytest.mark.parametrize("name", ["toy-mqar", "toy-mqar-mixed"])
def test_mqar_queries_have_the_values_of_their_keys(name: str) -> None:
    for source, target in rows(name):
        places = [place for place, token in enumerate(target) if token != "_"]
        end = 2 * len(places)  # of keys and values
        values = dict(zip(source[:end:2], source[1:end:2], strict=True))
        assert len(values) == len(places)
        assert all(place >= end and place % 2 == 0 for place in places)
        assert [values[source[place]] for place in places] == [target[place] for place in places]
        between = [s for s, t in zip(source[end:], target[end:], strict=True) if t == "_"]
        assert ({*between} == {"0"}) == (name == "toy-mqar")


def test_memorization_has_one_value_per_key() -> None:
    values = dict[str, str]()
    for split in ("train", "test"):
        for source, target in rows("toy-mad-memorization-256", split):
            for key, insert, before, value in zip(source[::2], source[1::2], target[::2], target[1::2], strict=True):
                assert (insert, before) == ("255", "_")
                assert values.setdefault(key, value) == value


@pytest.mark.parametrize("name", ["toy-mad-in-context", "toy-mad-noisy"])
def test_in_context_test_rows_mark_only_repeated_keys(name: str) -> None:
    for source, target in rows(name):
        values = dict[str, str]()
        for key, value, answer in zip(source[:-1:2], source[1::2], target[:-1:2], strict=True):
            if key in values:
                assert answer == values[key] == value
            elif int(key) < 8:
                assert answer == "_"
                values[key] = value
        assert target[-1] == values[source[-1]]
    for source, target in rows(name, "train"):
        assert source[1:] == target[:-1]


def test_selective_copying_keeps_the_order() -> None:
    for source, target in rows("toy-mad-selective"):
        assert source[-17] == "15"
        assert [token for token in source[:-17] if token != "14"] == target[-16:]
        assert {*target[:-16]} == {"_"}


def tokenized(pairs: Sequence[tuple[str, str]]) -> tuple[Tokenizer, list[Row]]:
    examples = [Row(*pair) for pair in pairs]
    spec = TokenizerConfig(type="word", size=12)
    return Tokenizer.train(spec, [Row("a b c _", "x y z _"), *examples], form="none"), examples


def test_only_marked_positions_are_predicted() -> None:
    tokenizer, examples = tokenized([("a b c", "_ x y"), ("b", "z")])
    encoded = mark(encode_rows(examples, tokenizer, 9, stream=False), tokenizer.target)
    batch = collate(encoded, np.array([0, 1]))
    x, y, z = (tokenizer.target.id_of(word) for word in "xyz")
    assert batch.output.tolist() == [[PAD, x, y, PAD], [z, PAD, PAD, PAD]]
    assert batch.source is not None
    assert batch.source.shape == batch.output.shape
    assert batch.tokens == 3


@pytest.mark.parametrize(("shape", "other"), [("encoder", "decoder"), ("decoder", "encoder")])
def test_metrics_are_those_of_the_marked_positions(shape: str, other: str) -> None:
    torch.manual_seed(0)
    tokenizer, examples = tokenized([("a b c", "_ x x"), ("b", "z"), ("c c", "_ x")])
    layers = {shape: 2, other: 0}
    model_options = {"shape": shape, "width": 8, "heads": 2, "ff": 0, "norm": "rms", "layers": layers}
    recipe = Recipe.model_validate({"task": "tagging", "data": {"corpus": "toy-parity"}, "model": model_options})
    model = build_for(recipe, tokenizer.sizes).eval()
    assert isinstance(model, PositionTagger)
    scores = teacher_forced_scores(
        ["accuracy", "balanced-accuracy"],
        model,
        tokenizer,
        examples,
        max_length=9,
        stream=False,
        objective=objective_of(recipe),
    )
    source = encode_rows(examples, tokenizer, 9, stream=False).source
    assert source is not None
    hits: dict[str, list[bool]] = {"x": [], "z": []}
    for number, row in enumerate(examples):
        ids = torch.from_numpy(source[number].astype(np.int64))[None]
        best = model(ids, None).argmax(-1)[0].tolist()
        for place, word in enumerate(row.target.split()):
            if word != "_":
                hits[word].append(best[place] == tokenizer.target.id_of(word))
    assert scores["accuracy"].value == pytest.approx(100 * np.mean(hits["x"] + hits["z"]))
    assert scores["balanced-accuracy"].value == pytest.approx(100 * np.mean([*map(np.mean, hits.values())]))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("a b", "_ _")], "all targets are _: there is nothing to learn"),
        ([("a b", "_ x"), ("b", "x")], "all targets other than _ are x: there is nothing to learn"),
        ([("a b", "x y"), ("a b", "x")], "row 2 has 2 tokens but 1 target;"),
    ],
)
def test_rows_with_nothing_to_learn_raise(pairs: list[tuple[str, str]], message: str) -> None:
    tokenizer, examples = tokenized(pairs)
    encoded = encode_rows(examples, tokenizer, 9, stream=False)
    with pytest.raises(DataError, match=message):
        check_marked(encoded, tokenizer.target, "mine: train")


RECIPE = """
task: tagging
data: {corpus: toy-parity, max_length: 70, size: 60, valid_rows: 10}
tokenizer: {type: word, size: 10}
model: {shape: decoder, width: 8, layers: 1, heads: 2, ff: 0, norm: rms, positions: none,
        attention: {name: gated-delta, decay: none, strength: 2.0, short_conv: 4}}
train: {steps: 2, batch_tokens: 400, precision: fp32, valid_every: 1, label_smoothing: 0}
eval: {metrics: [accuracy, balanced-accuracy], splits: [valid], lengths: [8, 64]}
"""


def test_recipe_trains_and_scores_other_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, out = tmp_path / "parity.yaml", tmp_path / "runs"
    recipe.write_text(RECIPE)
    train = ("train", str(recipe), "--out", str(out), "--quiet")
    too_long = "a row of length 128 has 129 tokens, end token included; raise data.max_length (70)"
    code, _, err = run_cli(capsys, *train, "eval.lengths=[128]")
    assert code == 65
    assert too_long in err
    assert not out.exists()
    code, _, err = run_cli(capsys, *train)
    assert code == 0, err
    code, text, err = run_cli(capsys, "eval", str(recipe), "--out", str(out), "--format", "json")
    assert code == 0, err
    scores = json.loads(text)["rows"]
    assert [row["length"] for row in scores] == [8, 64]
    assert all({*row["metrics"]} == {"accuracy", "balanced-accuracy"} for row in scores)
    # such rows were truncated and scored
    code, text, err = run_cli(capsys, "eval", str(out), "eval.lengths=[128]")
    assert (code, text) == (65, "")
    assert too_long in err
