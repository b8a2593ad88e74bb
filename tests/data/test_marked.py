"""Marked positions: generated rows, what a model reads of them, and what is refused."""

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


def rows(name: str, split: str = "test", size: int = 20, length: int = 0) -> list[list[list[str]]]:
    given = corpus_cards.load(name).marked
    assert given is not None
    found = MarkedRows(name, given).rows(split, size, 1, length)
    return [[row.source.split(), row.target.split()] for row in found]


@pytest.mark.parametrize("name", CORPORA)
def test_each_token_has_a_target_or_none_and_every_row_marks_some(name: str) -> None:
    given = corpus_cards.load(name).marked
    assert given is not None
    known = set(MarkedRows(name, given).words.split())
    for split in ("train", "test"):
        for source, target in rows(name, split, 5):
            assert len(source) == len(target)
            assert {*source, *target} <= known
            assert any(token != "_" for token in target)
    assert rows(name) == rows(name)
    assert rows(name, "train") != rows(name)


def test_parity_is_asked_at_the_end_of_longer_rows_than_in_training() -> None:
    for split, low, high in (("train", 3, 40), ("test", 40, 256)):
        for source, target in rows("toy-parity", split):
            assert low <= len(source) <= high
            assert target == ["_"] * (len(source) - 1) + [str(1 + source.count("2") % 2)]
    assert {len(source) for source, _ in rows("toy-parity", length=64)} == {64}


def test_reversed_rows_are_longer_in_tests_than_in_training() -> None:
    for split, longest in (("train", 25), ("test", 30)):
        found = rows("toy-reversal", split, 300)
        assert all(target == source[::-1] for source, target in found)
        assert {len(source) for source, _ in found} == {*range(1, longest + 1)}


def test_permutations_are_multiplied_from_the_first_on() -> None:
    for source, target in rows("toy-s3"):
        order = [0, 1, 2]
        for step, answer in zip(source, target, strict=True):
            order = [order[place] for place in SYMMETRIC[int(step)]]
            assert SYMMETRIC[int(answer)] == tuple(order)


@pytest.mark.parametrize("name", ["toy-mqar", "toy-mqar-mixed"])
def test_queries_have_the_values_of_their_keys(name: str) -> None:
    for source, target in rows(name):
        answers = [token for token in target if token != "_"]
        pairs = len(answers)
        known = dict(zip(source[: 2 * pairs : 2], source[1 : 2 * pairs : 2], strict=True))
        assert len(known) == pairs
        places = [at for at, token in enumerate(target) if token != "_"]
        assert all(at >= 2 * pairs and at % 2 == 0 for at in places)
        assert [known[source[at]] for at in places] == answers
        between = [s for s, t in zip(source[2 * pairs :], target[2 * pairs :], strict=True) if t == "_"]
        assert ({*between} == {"0"}) == (name == "toy-mqar")


def test_the_map_to_memorize_is_one() -> None:
    known = dict[str, str]()
    for split in ("train", "test"):
        for source, target in rows("toy-mad-memorization-256", split):
            for key, insert, before, value in zip(source[::2], source[1::2], target[::2], target[1::2], strict=True):
                assert (insert, before) == ("255", "_")
                assert known.setdefault(key, value) == value


@pytest.mark.parametrize("name", ["toy-mad-in-context", "toy-mad-noisy"])
def test_tests_ask_for_the_values_of_keys_that_were_seen(name: str) -> None:
    for source, target in rows(name):
        known = dict[str, str]()
        for key, value, answer in zip(source[:-1:2], source[1::2], target[:-1:2], strict=True):
            if key in known:
                assert answer == known[key] == value
            elif int(key) < 8:
                assert answer == "_"
                known[key] = value
        assert target[-1] == known[source[-1]]
    for source, target in rows(name, "train"):
        assert source[1:] == target[:-1]


def test_what_is_copied_comes_in_order() -> None:
    for source, target in rows("toy-mad-selective"):
        assert source[-17] == "15"
        assert [token for token in source[:-17] if token != "14"] == target[-16:]
        assert {*target[:-16]} == {"_"}


def made(pairs: Sequence[tuple[str, str]]) -> tuple[Tokenizer, list[Row]]:
    found = [Row(*pair) for pair in pairs]
    spec = TokenizerConfig(type="word", size=12)
    return Tokenizer.train(spec, [Row("a b c _", "x y z _"), *found], form="none"), found


def test_the_model_predicts_the_marked_positions_alone() -> None:
    tokenizer, found = made([("a b c", "_ x y"), ("b", "z")])
    encoded = mark(encode_rows(found, tokenizer, 9, stream=False), tokenizer.target)
    batch = collate(encoded, np.array([0, 1]))
    x, y, z = (tokenizer.target.id_of(word) for word in "xyz")
    assert batch.output.tolist() == [[PAD, x, y, PAD], [z, PAD, PAD, PAD]]
    assert batch.source is not None
    assert batch.source.shape == batch.output.shape
    assert batch.tokens == 3


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_both_metrics_are_those_of_the_positions(shape: str) -> None:
    torch.manual_seed(0)
    tokenizer, found = made([("a b c", "_ x x"), ("b", "z"), ("c c", "_ x")])
    recipe = Recipe.model_validate(
        {
            "task": "tagging",
            "data": {"corpus": "toy-parity"},
            "model": {
                "shape": shape,
                "width": 8,
                "heads": 2,
                "ff": 0,
                "norm": "rms",
                "layers": {shape: 2, "decoder" if shape == "encoder" else "encoder": 0},
            },
        }
    )
    model = build_for(recipe, (len(tokenizer.source), len(tokenizer.target))).eval()
    assert isinstance(model, PositionTagger)
    scores = teacher_forced_scores(
        ["accuracy", "balanced-accuracy"],
        model,
        tokenizer,
        found,
        max_length=9,
        stream=False,
        objective=objective_of(recipe),
    )
    source = encode_rows(found, tokenizer, 9, stream=False).source
    assert source is not None
    right = list[tuple[str, bool]]()
    for number, row in enumerate(found):
        ids = torch.from_numpy(source[number].astype(np.int64))[None]
        best = model(ids, None).argmax(-1)[0].tolist()
        for at, word in enumerate(row.target.split()):
            if word != "_":
                right.append((word, best[at] == tokenizer.target.id_of(word)))
    assert scores["accuracy"].value == pytest.approx(100 * np.mean([hit for _, hit in right]))
    each = [np.mean([hit for word, hit in right if word == answer]) for answer in "xz"]
    assert scores["balanced-accuracy"].value == pytest.approx(100 * np.mean(each))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("a b", "_ _")], "all targets are _: there is nothing to learn"),
        ([("a b", "_ x"), ("b", "x")], "all targets other than _ are x: there is nothing to learn"),
        ([("a b", "x y"), ("a b", "x")], "row 2 has 2 tokens but 1 target;"),
    ],
)
def test_rows_without_anything_to_learn_are_refused(pairs: list[tuple[str, str]], message: str) -> None:
    tokenizer, found = made(pairs)
    encoded = encode_rows(found, tokenizer, 9, stream=False)
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


def test_a_recipe_of_marked_positions_trains_and_scores_beyond_its_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "parity.yaml"
    recipe.write_text(RECIPE)
    out = tmp_path / "runs"
    code, _, err = run_cli(capsys, "train", str(recipe), "--out", str(out), "--quiet")
    assert code == 0, err
    code, text, err = run_cli(capsys, "eval", str(recipe), "--out", str(out), "--format", "json")
    assert code == 0, err
    found = json.loads(text)["rows"]
    assert [row["length"] for row in found] == [8, 64]
    assert all({*row["metrics"]} == {"accuracy", "balanced-accuracy"} for row in found)
    code, text, err = run_cli(capsys, "eval", str(out), "eval.lengths=[128]")  # it scored rows that were cut
    assert (code, text) == (65, "")
    assert "a row of length 128 has 129 tokens, end token included; raise data.max_length (70)" in err


def test_longer_rows_than_the_model_reads_are_refused_while_planning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = tmp_path / "parity.yaml", tmp_path / "runs"
    recipe.write_text(RECIPE)
    words = (str(recipe), "eval.lengths=[128]", "--out", str(out), "--quiet")
    code, _, err = run_cli(capsys, "train", *words)
    assert code == 65
    assert "raise data.max_length (70)" in err
    assert not out.exists()
