"""Several processes train as one that accumulates their batches, and score as one alone."""

import copy
import json
import random
from collections.abc import Iterator
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


def recipe_in(folder: Path, *, dropout: float = 0.2, **train: Any) -> Recipe:
    recipe = small_recipe(write_corpus(folder), **train)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"dropout": dropout})})


def with_train(recipe: Recipe, **train: Any) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=train)})


def succeed(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def losses(folder: Path) -> list[float]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [r["loss"] for r in map(json.loads, lines) if "loss" in r]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read(folder / "run" / "model.safetensors")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_ranks_are_an_accumulation_of_two_bit_for_bit(tmp_path: Path, pool: RankPool, precision: str) -> None:
    recipe = recipe_in(tmp_path, dropout=0, precision=precision, average=2, clip=0.1)
    succeed(pool.run(1, on_ranks.train_alone, tmp_path / "one", with_train(recipe, accumulate=2)))
    succeed(pool.run(2, on_ranks.train, tmp_path / "two", recipe))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parallel"), [("sru-additive", "ddp"), ("performer", "fsdp"), ("relative", "fsdp")])
def test_every_type_of_model_trains_in_ranks(tmp_path: Path, pool: RankPool, kind: str, parallel: str) -> None:
    performer = AttentionConfig(name="performer")
    changes: dict[str, Any] = {
        "sru-additive": BASELINES["sru-additive"],
        "performer": {"attention": Roles(encoder=performer, decoder=performer)},
        "relative": {"positions": "relative", "tie": "none"},
    }
    recipe = recipe_in(tmp_path, steps=3, log_every=1, valid_every=0, parallel=parallel)
    model = recipe.model.model_copy(update={"dropout": 0.0} | changes[kind])
    recipe = recipe.model_copy(update={"model": model})
    run_training(job(tmp_path / "one", with_train(recipe, accumulate=2)))
    succeed(pool.run(2, on_ranks.train, tmp_path / "two", recipe))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)


@pytest.mark.slow
def test_any_number_of_ranks_has_the_losses_of_one_with_ddp_and_fsdp(tmp_path: Path, pool: RankPool) -> None:
    """Updates of four ragged batches, with dropout; FSDP also in bf16 within its rounding."""
    recipe = recipe_in(tmp_path, steps=6, log_every=1, valid_every=0)
    for parallel, world in (("ddp", 1), ("ddp", 4), ("fsdp", 2)):
        folder = tmp_path / f"{parallel}-{world}"
        how = with_train(recipe, parallel=parallel, accumulate=4 // world)
        succeed(pool.run(world, on_ranks.train, folder, how))
        expected = losses(tmp_path / "ddp-1")
        assert len(expected) == 6
        assert losses(folder) == pytest.approx(expected, rel=1e-6), (parallel, world)
    how = with_train(recipe, parallel="fsdp", accumulate=2, precision="bf16")
    succeed(pool.run(2, on_ranks.train, tmp_path / "bf16", how))
    assert losses(tmp_path / "bf16") == pytest.approx(expected, rel=0.02)
    assert all(t.dtype == torch.float32 for t in weights(tmp_path / "bf16").values())


@pytest.mark.slow
def test_gradient_descent_in_float64_ends_at_the_same_weights(tmp_path: Path, pool: RankPool) -> None:
    recipe = recipe_in(tmp_path, dropout=0)
    fsdp = with_train(recipe, parallel="fsdp")
    runs = [(recipe, 1), (recipe, 4), (fsdp, 2)]
    one, *others = (succeed(pool.run(world, on_ranks.gradient_descent, tmp_path, how, 4, 10)) for how, world in runs)
    for ranks in others:
        for found in ranks:
            assert all((found[n] - one[0][n]).abs().max() < 1e-12 for n in found)


@pytest.mark.slow
def test_a_stopped_training_resumes_bit_for_bit(tmp_path: Path, pool: RankPool) -> None:
    """With FSDP; the command line's test has DDP."""
    recipe = recipe_in(tmp_path, parallel="fsdp", average=2, choose="best", steps=8)
    succeed(pool.run(2, on_ranks.train, tmp_path / "whole", recipe))
    succeed(pool.run(2, on_ranks.train, tmp_path / "parts", recipe, 3))
    succeed(pool.run(2, on_ranks.train, tmp_path / "parts", recipe))
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert Run.open(tmp_path / "parts" / "run").finished


@pytest.mark.slow
def test_a_checkpoint_of_sharded_weights_is_read_by_any_number_of_ranks(tmp_path: Path, pool: RankPool) -> None:
    """Also by one process alone, which goes on to the end, and by ranks that do not shard."""
    recipe = recipe_in(tmp_path, parallel="fsdp", ema=0.9, choose="best", valid_every=2, steps=4)
    plain = with_train(recipe, parallel="ddp")
    succeed(pool.run(2, on_ranks.train, tmp_path, recipe, 3))
    read = [(1, recipe), (3, recipe), (2, plain)]
    found = {d for world, how in read for d in succeed(pool.run(world, on_ranks.state_of, tmp_path, how))}
    assert len(found) == 1
    run_training(job(tmp_path, recipe))
    assert len(list(digests(tmp_path))) == 3


@pytest.mark.slow
def test_a_checkpoint_of_one_process_is_sharded_when_ranks_resume_it(tmp_path: Path, pool: RankPool) -> None:
    recipe = recipe_in(tmp_path, parallel="fsdp", average=3, valid_every=1)
    succeed(pool.run(1, on_ranks.train, tmp_path, with_train(recipe, parallel="ddp"), 4))
    (one,) = succeed(pool.run(1, on_ranks.state_of, tmp_path, with_train(recipe, parallel="ddp")))
    assert set(succeed(pool.run(2, on_ranks.state_of, tmp_path, recipe))) == {one}
    succeed(pool.run(2, on_ranks.train, tmp_path, recipe))
    run = Run.open(tmp_path / "run")
    assert run.finished
    assert run.manifest.world_size == 2
    change = {"step": 4, "key": "processes", "old": "1", "new": "2"}
    assert [one.model_dump() for one in run.manifest.changes] == [change]


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_every_row_is_used_once_an_epoch_and_ranks_make_equally_many_updates(
    data: st.DataObject, world: int, accumulate: int, seed: int
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=60))
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    target = Ragged(np.zeros(offsets[-1], dtype=np.uint32), offsets)
    rows = Encoded(None, target, Counts(), "", Path())
    streams = [BatchStream(lambda _: rows, 40, seed) for _ in range(world)]
    seen: dict[tuple[int, ...], Batch] = {}
    while min(stream.epoch for stream in streams) < 3:
        parts = [s.take(accumulate, rank, world) for rank, s in enumerate(streams)]
        assert {len(part) for part in parts} == {accumulate}
        assert len({(s.epoch, s.position) for s in streams}) == 1
        for batch in (batch for part in parts for batch in part):
            assert batch.place not in seen
            seen[batch.place] = batch
    for epoch in range(3):
        used = [b.rows for (_, at, _), b in seen.items() if at == epoch]
        assert sorted(np.concatenate(used).tolist()) == list(range(len(lengths)))


@pytest.mark.slow
def test_outputs_and_probabilities_are_those_of_one_process(tmp_path: Path, pool: RankPool) -> None:
    recipe = recipe_in(tmp_path, steps=2)
    succeed(pool.run(1, on_ranks.train, tmp_path, recipe))
    draw = random.Random(2)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(0, 9))) for _ in range(61)]
    found = [succeed(pool.run(world, on_ranks.translate_and_score, tmp_path / "run", texts, 60)) for world in (1, 3)]
    assert all(one == found[0][0] for ranks in found for one in ranks)
    assert len(found[0][0][0]) == 61


@pytest.mark.slow
def test_questions_have_the_same_answers_from_any_number_of_ranks(tmp_path: Path, pool: RankPool) -> None:
    run, model = make_run(tmp_path), copy.deepcopy(random_model("llama"))
    model.config.max_position_embeddings = 1024  # of rotary positions, which have no table
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    (one,), others = (
        succeed(pool.run(world, on_ranks.answer_questions, run.path, tmp_path / "model")) for world in (1, 3)
    )
    assert others == [one] * 3
    assert len(one) == 4
    assert all(len(answers) == 6 for answers in one)


REFUSED = {
    "no way to train together": ({"parallel": "none"}, RecipeError, "but 2 processes train together"),
    "16 bits that FSDP cannot scale": ({"parallel": "fsdp", "precision": "fp16"}, RecipeError, "use bf16"),
}


@pytest.mark.parametrize(("train", "kind", "words"), REFUSED.values(), ids=REFUSED)
def test_all_ranks_refuse_alike(
    tmp_path: Path, pool: RankPool, train: dict[str, Any], kind: type[Exception], words: str
) -> None:
    found = pool.run(2, on_ranks.train, tmp_path, recipe_in(tmp_path, **train))
    assert all(isinstance(error, kind) and words in str(error) for error in found)


def test_more_ranks_than_rows_are_refused(tmp_path: Path, pool: RankPool) -> None:
    recipe = small_recipe(write_corpus(tmp_path, rows=3))
    found = pool.run(4, on_ranks.train, tmp_path, recipe)
    assert {type(error) for error in found} == {UsageError}
    assert str(found[0]) == "4 processes are too many for 3 rows of training data"


def test_ranks_with_different_data_say_so(tmp_path: Path, pool: RankPool) -> None:
    found = pool.run(3, on_ranks.fail_on_last, recipe_in(tmp_path), tmp_path, "data")
    assert {type(error) for error in found} == {DataError}
    assert "ranks 2 and 0 have different recipes or data" in str(found[0])


def test_an_error_of_one_rank_is_named_by_the_others(tmp_path: Path, pool: RankPool) -> None:
    found = pool.run(2, on_ranks.fail_on_last, recipe_in(tmp_path), tmp_path, "memory")
    assert isinstance(found[0], MemoryLimitError), found
    assert str(found[0]).startswith("rank 1: step 1: out of memory on a batch of")


def test_no_rank_trains_with_another_command(pool: RankPool) -> None:
    found = pool.run(2, on_ranks.join_with_own_command)
    assert [type(error) for error in found] == [UsageError, UsageError]
    assert "rank 1 was started with 'train 1', rank 0 with 'train 0'" in str(found[0])
