"""Tests that several processes train like one that accumulates their batches, and decode like one."""

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import on_ranks
from helpers.model_types import BASELINES
from helpers.pretrained import random_model, tokenizer
from helpers.question_runs import make_run
from helpers.rank_pool import RankPool, rank_pool
from helpers.small import WORDS, digests, job, run_training, small_recipe, write_corpus
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.batch import Batch
from attnkit.data.encoded import Encoded, Ragged
from attnkit.data.rows import Counts
from attnkit.errors import DataError, MemoryLimitError, RecipeError, UsageError
from attnkit.recipe import Recipe
from attnkit.recipe.schema import AttentionConfig, Roles
from attnkit.runs import Run
from attnkit.storage.tensors import read
from attnkit.train.batch_stream import BatchStream


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with rank_pool() as pool:
        yield pool


def recipe_in(folder: Path, *, model: dict[str, Any] | None = None, **train: Any) -> Recipe:
    recipe = small_recipe(write_corpus(folder), **train)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=model or {})})


def with_train(recipe: Recipe, **train: Any) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def call(pool: RankPool, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the results of a function on so many ranks, or raise the first error."""
    results = pool.run(world, function, *arguments)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def losses(folder: Path) -> list[float]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [r["loss"] for r in map(json.loads, lines) if "loss" in r]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read(folder / "run" / "model.safetensors")


def different(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in first if not torch.equal(first[name], second[name])]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_ranks_equal_an_accumulation_of_two_batches(tmp_path: Path, pool: RankPool, precision: str) -> None:
    recipe = recipe_in(tmp_path, model={"dropout": 0.0}, precision=precision, average=2, clip=0.1)
    call(pool, 1, on_ranks.train_alone, tmp_path / "one", with_train(recipe, accumulate=2))
    call(pool, 2, on_ranks.train, tmp_path / "two", recipe)
    assert different(weights(tmp_path / "one"), weights(tmp_path / "two")) == []
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-7)


PERFORMER = AttentionConfig(name="performer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        pytest.param(BASELINES["sru-additive"], "ddp", id="sru-additive"),
        pytest.param({"attention": Roles(encoder=PERFORMER, decoder=PERFORMER)}, "fsdp", id="performer"),
        pytest.param({"positions": "relative", "tie": "none"}, "fsdp", id="relative"),
    ],
)
def test_every_model_type_trains_with_ranks(
    tmp_path: Path, pool: RankPool, model: dict[str, Any], parallel: str
) -> None:
    train: Any = {"steps": 3, "log_every": 1, "valid_every": 0, "parallel": parallel}
    recipe = recipe_in(tmp_path, model={"dropout": 0.0} | model, **train)
    run_training(job(tmp_path / "one", with_train(recipe, accumulate=2)))
    call(pool, 2, on_ranks.train, tmp_path / "two", recipe)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)


@pytest.mark.slow
def test_losses_do_not_depend_on_ranks_or_ddp_or_fsdp(tmp_path: Path, pool: RankPool) -> None:
    """Updates of four batches of different sizes, with dropout; FSDP also in bf16 within its rounding."""
    recipe = recipe_in(tmp_path, steps=6, log_every=1, valid_every=0)
    for parallel, world in (("ddp", 1), ("ddp", 4), ("fsdp", 2)):
        folder = tmp_path / f"{parallel}-{world}"
        changed = with_train(recipe, parallel=parallel, accumulate=4 // world)
        call(pool, world, on_ranks.train, folder, changed)
        expected = losses(tmp_path / "ddp-1")
        assert len(expected) == 6
        assert losses(folder) == pytest.approx(expected, rel=1e-6), (parallel, world)
    changed = with_train(recipe, parallel="fsdp", accumulate=2, precision="bf16")
    call(pool, 2, on_ranks.train, tmp_path / "bf16", changed)
    assert losses(tmp_path / "bf16") == pytest.approx(expected, rel=0.02)
    assert all(t.dtype == torch.float32 for t in weights(tmp_path / "bf16").values())


@pytest.mark.slow
def test_gradient_descent_in_float64_reaches_the_same_weights(tmp_path: Path, pool: RankPool) -> None:
    recipe = recipe_in(tmp_path, model={"dropout": 0.0})
    trainings = [(recipe, 1), (recipe, 4), (with_train(recipe, parallel="fsdp"), 2)]
    results = (call(pool, world, on_ranks.gradient_descent, tmp_path, changed, 4, 10) for changed, world in trainings)
    [expected], *others = results
    for ranks in others:
        for found in ranks:
            assert all((found[name] - expected[name]).abs().max() < 1e-12 for name in found)


@pytest.mark.slow
def test_resumed_fsdp_training_equals_uninterrupted_training(tmp_path: Path, pool: RankPool) -> None:
    """A test of the command line does the same with DDP."""
    recipe = recipe_in(tmp_path, parallel="fsdp", average=2, choose="best", steps=8)
    call(pool, 2, on_ranks.train, tmp_path / "whole", recipe)
    call(pool, 2, on_ranks.train, tmp_path / "parts", recipe, 3)
    call(pool, 2, on_ranks.train, tmp_path / "parts", recipe)
    assert different(weights(tmp_path / "whole"), weights(tmp_path / "parts")) == []
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert Run.open(tmp_path / "parts" / "run").finished


@pytest.mark.slow
def test_sharded_checkpoint_is_read_by_any_number_of_ranks(tmp_path: Path, pool: RankPool) -> None:
    """One process alone and ranks without sharding read it too; one process trains on to the end."""
    recipe = recipe_in(tmp_path, parallel="fsdp", ema=0.9, choose="best", valid_every=2, steps=4)
    call(pool, 2, on_ranks.train, tmp_path, recipe, 3)
    readers = [(1, recipe), (3, recipe), (2, with_train(recipe, parallel="ddp"))]
    states = {s for world, chosen in readers for s in call(pool, world, on_ranks.state_of, tmp_path, chosen)}
    assert len(states) == 1
    run_training(job(tmp_path, recipe))
    assert len(list(digests(tmp_path))) == 3


@pytest.mark.slow
def test_checkpoint_of_one_process_is_sharded_by_ranks(tmp_path: Path, pool: RankPool) -> None:
    recipe = recipe_in(tmp_path, parallel="fsdp", average=3, valid_every=1)
    unsharded = with_train(recipe, parallel="ddp")
    call(pool, 1, on_ranks.train, tmp_path, unsharded, 4)
    (state,) = call(pool, 1, on_ranks.state_of, tmp_path, unsharded)
    assert set(call(pool, 2, on_ranks.state_of, tmp_path, recipe)) == {state}
    call(pool, 2, on_ranks.train, tmp_path, recipe)
    run = Run.open(tmp_path / "run")
    assert run.finished
    assert run.manifest.world_size == 2
    expected = {"step": 4, "key": "processes", "old": "1", "new": "2"}
    assert [change.model_dump() for change in run.manifest.changes] == [expected]


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_ranks_use_every_row_once_per_epoch_in_equally_many_updates(
    data: st.DataObject, world: int, accumulate: int, seed: int
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=60))
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    rows = Encoded(None, Ragged(np.zeros(offsets[-1], dtype=np.uint32), offsets), Counts(), "", Path())
    streams = [BatchStream(lambda _: rows, 40, seed) for _ in range(world)]
    batches: dict[tuple[int, ...], Batch] = {}
    while min(stream.epoch for stream in streams) < 3:
        parts = [stream.take(accumulate, rank, world) for rank, stream in enumerate(streams)]
        assert {len(part) for part in parts} == {accumulate}
        assert len({(stream.epoch, stream.position) for stream in streams}) == 1
        for batch in (batch for part in parts for batch in part):
            assert batch.place not in batches
            batches[batch.place] = batch
    for epoch in range(3):
        used = [batch.rows for (_, at, _), batch in batches.items() if at == epoch]
        assert sorted(np.concatenate(used).tolist()) == list(range(len(lengths)))


@pytest.mark.slow
def test_outputs_and_probabilities_equal_those_of_one_process(tmp_path: Path, pool: RankPool) -> None:
    call(pool, 1, on_ranks.train, tmp_path, recipe_in(tmp_path, steps=2))
    draw = random.Random(2)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(0, 9))) for _ in range(61)]
    (one,), others = (call(pool, world, on_ranks.translate_and_score, tmp_path / "run", texts, 60) for world in (1, 3))
    assert others == [one] * 3
    assert len(one[0]) == 61


@pytest.mark.slow
def test_answers_equal_those_of_one_process(tmp_path: Path, pool: RankPool) -> None:
    run, model = make_run(tmp_path), copy.deepcopy(random_model("llama"))
    model.config.max_position_embeddings = 1024  # of rotary positions, which have no table
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    (one,), others = (call(pool, world, on_ranks.answer_questions, run.path, tmp_path / "model") for world in (1, 3))
    assert others == [one] * 3
    assert len(one) == 4
    assert all(len(answers) == 6 for answers in one)


@pytest.mark.parametrize(
    ("world", "rows", "train", "fault", "kind", "message"),
    [
        (2, 40, {"parallel": "none"}, "", RecipeError, "but 2 processes train together"),
        (2, 40, {"parallel": "fsdp", "precision": "fp16"}, "", RecipeError, "use bf16"),  # FSDP cannot scale the loss
        (4, 3, {}, "", UsageError, "^4 processes are too many for 3 rows of training data$"),
        (3, 40, {}, "data", DataError, "ranks 2 and 0 have different recipes or data"),
    ],
)
def test_all_ranks_raise_the_same_error(
    tmp_path: Path, pool: RankPool, world: int, rows: int, train: Any, fault: str, kind: type[Exception], message: str
) -> None:
    recipe = small_recipe(write_corpus(tmp_path, rows=rows), **train)
    errors = pool.run(world, on_ranks.fail_on_last, recipe, tmp_path, fault)
    assert all(isinstance(error, kind) and re.search(message, str(error)) for error in errors), errors


def test_other_ranks_report_the_error_of_one_rank(tmp_path: Path, pool: RankPool) -> None:
    errors = pool.run(2, on_ranks.fail_on_last, recipe_in(tmp_path), tmp_path, "memory")
    assert isinstance(errors[0], MemoryLimitError), errors
    assert str(errors[0]).startswith("rank 1: step 1: out of memory on a batch of")


def test_ranks_with_different_commands_raise(pool: RankPool) -> None:
    errors = pool.run(2, on_ranks.join_with_own_command)
    assert [type(error) for error in errors] == [UsageError, UsageError]
    assert "rank 1 was started with 'train 1', rank 0 with 'train 0'" in str(errors[0])
