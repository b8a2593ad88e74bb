"""What a recipe costs on several ranks, computed from what one costs."""

from pathlib import Path

import pytest
from helpers import ranked
from helpers.rank_pool import rank_pool
from helpers.small import small_recipe, write_corpus

from attnkit.data.preparation import PreparedData, prepare
from attnkit.experiment import cost
from attnkit.experiment.scale import ScaledCost, at_scale
from attnkit.ops.operation_count import count_operations
from attnkit.recipe import Recipe, load
from attnkit.train.batch_stream import BatchStream, score_budget

SMALL = (
    "task: translation\ndata: {corpus: toy-translation, size: 300, max_length: 64}\n"
    "tokenizer: {size: 300}\nmodel: {width: 32, ff: 64, layers: 2, heads: 2}\n"
    "train: {batch_tokens: 512, steps: 50, accumulate: 2, average: 3}\n"
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    folder = tmp_path_factory.mktemp("scale")
    return prepare(made(folder), cache=folder / "cache")


def made(folder: Path, *overrides: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(SMALL)
    return load(path, overrides).variants["base"]


def memory_of(recipe: Recipe, prepared: PreparedData) -> cost.MemoryEstimate:
    sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
    return cost.memory(recipe, sizes, cost.largest(recipe, prepared)[0])


def scaled(
    recipe: Recipe, prepared: PreparedData, ranks: int, rows: int = 300, precision: str = "fp32"
) -> ScaledCost:
    memory, padding = memory_of(recipe, prepared), cost.padding(recipe, prepared)
    pace = cost.Pace(precision, 0.5, 1000.0, 25.0)
    return at_scale(recipe, prepared, memory, padding, pace, 1e6, ranks=ranks, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["scaled-dot", "linear"])
def test_operations_are_those_of_real_updates(
    model: str, prepared: PreparedData, tmp_path: Path
) -> None:
    roles = f"{{encoder: {model}, decoder: {model}}}"
    recipe = made(tmp_path, f"model.attention={roles}", "train.accumulate=1")
    rows = list(cost.batches(recipe, prepared))
    updates = cost._Updates(recipe, prepared, "fp32", "cpu")
    counted = count_operations(lambda: updates.seconds(rows)) / len(rows)
    assert cost.operations(recipe, prepared) == pytest.approx(counted, rel=0.15)


def test_an_epoch_asks_for_the_same_operations_of_any_number_of_ranks(
    prepared: PreparedData, tmp_path: Path
) -> None:
    recipe = made(tmp_path)
    one, many = (scaled(recipe, prepared, ranks).operations for ranks in (1, 7))
    assert one == pytest.approx(many)
    assert one == pytest.approx(1e6 * cost.padding(recipe, prepared).updates)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_an_epoch_has_as_many_updates_as_the_ranks_make(
    ranks: int, prepared: PreparedData, tmp_path: Path
) -> None:
    recipe = made(tmp_path)
    stream = BatchStream(lambda _: prepared.train, 512, 1, score_budget(recipe))
    updates = 0
    while stream.epoch < 5:
        stream.take(recipe.train.accumulate, 0, ranks)
        updates += 1
    assert updates / 5 == pytest.approx(scaled(recipe, prepared, ranks).updates, abs=0.2)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_what_is_sent_is_that_of_a_ring(
    parallel: str, prepared: PreparedData, tmp_path: Path
) -> None:
    recipe = made(tmp_path, f"train.parallel={parallel}")
    sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
    total = cost.parameters(recipe, sizes).total
    assert scaled(recipe, prepared, 1).sent == 0
    two, many = scaled(recipe, prepared, 2).sent, scaled(recipe, prepared, 1000).sent
    if parallel == "ddp":  # half of the gradients to the other one, the sum of the other half back
        assert (two, many) == (4 * total, pytest.approx(8 * total, rel=0.01))
        return
    block = 4 * 32 * 33 + 2 * 32 * 64 + 64 + 32 + 2 * 64  # attention, feed-forward, two norms
    cross = 4 * 32 * 33 + 64
    blocks = 4 * block + 2 * cross
    gathered = 2 * (2 * blocks + total - blocks)  # two micro-batches
    assert two == 4 * (gathered + total) // 2
    half = scaled(recipe, prepared, 2, precision="bf16").sent
    assert half == (2 * gathered + 4 * total) // 2


def test_shards_shrink_with_the_ranks_and_copies_do_not(
    prepared: PreparedData, tmp_path: Path
) -> None:
    ddp, fsdp = (made(tmp_path, f"train.parallel={how}") for how in ("ddp", "fsdp"))
    memory = memory_of(ddp, prepared)
    weights = memory.optimizer // 2
    assert {scaled(ddp, prepared, n).memory for n in (2, 8, 64)} == {memory.total + weights}
    assert {scaled(one, prepared, 1).memory for one in (ddp, fsdp)} == {memory.total}
    most, fewer, least = (scaled(fsdp, prepared, n).memory for n in (2, 8, 10**6))
    kept = memory.total - memory.activations - weights  # all but the copy that validates
    assert most - fewer == pytest.approx(kept * (1 / 2 - 1 / 8), abs=2)
    assert memory.activations + weights < least < memory.activations + 3 * weights


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_ranks_hold_what_is_computed(parallel: str, tmp_path: Path) -> None:
    recipe = small_recipe(write_corpus(tmp_path), parallel=parallel, accumulate=1)
    with rank_pool() as pool:
        found, sizes = zip(*pool.run(2, ranked.held, tmp_path / "two", recipe), strict=True)
    size = sizes[0]
    expected = 4 * size * 3 // (2 if parallel == "fsdp" else 1)  # parameters, two moments
    assert sum(found) == pytest.approx(2 * expected, rel=1e-3)
    assert max(found) == pytest.approx(expected, rel=0.1)  # odd numbers of rows


def test_more_rows_take_more_updates_and_more_of_the_disk(
    prepared: PreparedData, tmp_path: Path
) -> None:
    recipe = made(tmp_path)
    here, more = scaled(recipe, prepared, 2), scaled(recipe, prepared, 2, rows=30_000)
    files = sum(
        path.stat().st_size for path in prepared.train.path.iterdir() if path.suffix != ".json"
    )
    assert here.stored == files - 16  # each side has one more offset than rows
    assert more.updates == pytest.approx(100 * here.updates)
    assert more.stored == 100 * here.stored
    assert (more.rows, more.memory, more.sent) == (30_000, here.memory, here.sent)
