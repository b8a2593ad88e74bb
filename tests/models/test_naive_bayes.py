"""Tests of naive Bayes from counts: identities, worked numbers, pools against plain formulas."""

from itertools import permutations
from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model
from torch import Tensor
from torch.testing import assert_close

from attnkit.data.batch import Batch
from attnkit.data.synthetic.known_source import END, LINE, SOURCES
from attnkit.models.counted import add_neighbors, add_pairs, no_counts
from attnkit.models.naive_bayes import smoothed
from attnkit.nbce.merge import merge

SIZE = 9
POOLS: list[dict[str, Any]] = [
    {"pool": "mean"},
    {"pool": "max"},
    {"pool": "entropy"},
    {"pool": "weighted"},
    {"pool": "weighted", "weights": "recency", "decay": 0.7},
]
ORDERLESS = POOLS[:4]
BETAS: list[Any] = [-1, 0, 0.25, 1, "exact"]


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def joint(seed: int = 0) -> Tensor:
    """Return a random joint count of pairs of tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((SIZE, SIZE), generator=generator, dtype=torch.float64) ** 3 + 1e-3


def make(size: int = SIZE, width: int = 4, **options: Any) -> Any:
    model = tiny_model(size, seed=3, type="naive-bayes", shape="decoder", width=width, naive_bayes=options)
    return model.double().eval()


def counted(**options: Any) -> Any:
    """Return a model of a random joint count; the table of its residual is from another one."""
    model = make(**options)
    model.set_joint(joint())
    if options.get("residual") == "own":
        near = joint(1)
        model.neighbours = (near / near.sum(1, keepdim=True)).log() - model.unigram
    if options.get("estimate") == "skip-gram":
        model.settle()
    return model


def batch_of(output: Tensor) -> Batch:
    """Return a batch with rows of ids as the text after the begin token."""
    begin = torch.where(output != 0, 2, 0)[:, :1]
    return Batch(None, torch.cat((begin, output[:, :-1]), 1), output, torch.arange(len(output)).numpy(), 0)


@torch.no_grad()
def logprobs(model: Any, ids: list[int]) -> Tensor:
    """Return the log-probabilities [V] of the token after `ids`."""
    return model.hidden(None, torch.tensor([ids]))[0, -1]


@pytest.mark.parametrize("options", POOLS)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_probabilities_sum_to_1(options: dict[str, Any], beta: Any, residual: str) -> None:
    model = counted(beta=beta, residual=residual, **options)
    out = model.hidden(None, torch.tensor([[2, 5, 5, 8, 3, 7]]))
    assert_close(out.exp().sum(-1), torch.ones(1, 6, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("ids", [[2, 5], [2, 5, 7, 7], [3, 4, 5, 6, 7, 8, 8, 3, 2, 1]])
def test_exact_beta_is_the_product_of_likelihoods(ids: list[int]) -> None:
    table = joint()
    product = table.sum(0) / table.sum()  # p(x)
    for token in ids:
        product = product * table[token] / table.sum(0)  # p(a | x)
    for beta in ("exact", len(ids) - 1):  # t - 2, where t is the position of the next token
        assert_close(logprobs(counted(beta=beta), ids).exp(), product / product.sum(), atol=1e-12, rtol=1e-12)


def assert_differs(left: Tensor, right: Tensor) -> None:
    assert not torch.allclose(left, right, atol=1e-3)


@pytest.mark.parametrize("options", ORDERLESS)
@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_order_of_the_context_matters_only_for_the_last_token(options: dict[str, Any], residual: str) -> None:
    model = counted(residual=residual, **options)
    first, *others = (logprobs(model, [*order, 3]) for order in permutations([2, 5, 7, 8]))
    for other in others:
        assert_close(other, first)
    check = assert_close if residual == "none" else assert_differs
    check(logprobs(model, [3, 5, 7, 8, 2]), first)


@pytest.mark.parametrize("options", POOLS)
@pytest.mark.parametrize("beta", [-1, 0, 0.25, 1, 4])
def test_running_sums_equal_the_merge_of_contexts(options: dict[str, Any], beta: float) -> None:
    ids, table = [2, 5, 7, 5, 8, 3], joint()
    rows = torch.cat(((table.sum(0) / table.sum()).log()[None], (table / table.sum(1, keepdim=True)).log()[ids]))
    weights = None
    if options.get("weights") == "recency":
        faded = 0.7 ** torch.arange(len(ids)).flip(0).double()
        weights = faded / faded.sum()
    expected, _ = merge(rows, options["pool"], beta, eta=0, top_p=1, weights=weights)
    assert_close(logprobs(counted(beta=beta, **options), ids), expected)


@pytest.mark.parametrize(
    ("beta", "expected"), [("exact", (0.303797, 0.379747, 0.316456)), (0, (0.398165, 0.344821, 0.257014))]
)
def test_worked_numbers_of_counts(beta: Any, expected: tuple[float, ...]) -> None:
    model = make(3, beta=beta)
    model.unigram = float64(0.5, 0.3, 0.2).log()
    model.pairs[1] = float64(0.6, 0.3, 0.1).log() - model.unigram
    model.pairs[2] = float64(0.2, 0.3, 0.5).log() - model.unigram
    assert_close(logprobs(model, [1, 2]).exp(), float64(*expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("pool", "normalize", "expected"),
    [
        ("weighted", True, (0.173179, 0.604455, 0.222366)),
        ("weighted", False, (0.173179, 0.604455, 0.222366)),
        ("max", True, (0.422319, 0.422319, 0.155362)),
        ("max", False, (0.211942, 0.576117, 0.211942)),
    ],
)
def test_worked_numbers_of_vectors(pool: str, normalize: bool, expected: tuple[float, ...]) -> None:
    weights = {"weights": "recency", "decay": 1 / 3} if pool == "weighted" else {}
    model = make(3, 2, estimate="skip-gram", pool=pool, normalize=normalize, beta=0, **weights)
    model.past.data = float64(0, 0, 1, 0, 0, 2).view(3, 2)
    model.future.data = float64(1, 0, 0, 1, -1, 0.5).view(3, 2)
    model.unigram = float64(0.2, 0.5, 0.3).log()
    assert_close(logprobs(model, [1, 2]).exp(), float64(*expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("options", POOLS)
@pytest.mark.parametrize("residual", ["none", "shared"])
@pytest.mark.parametrize("beta", BETAS[1:])
def test_normalizing_vectors_changes_the_maximum_pool_only(options: dict[str, Any], residual: str, beta: Any) -> None:
    options = {"estimate": "skip-gram", "residual": residual, "beta": beta} | options
    check = assert_differs if options["pool"] == "max" else assert_close
    check(*(logprobs(counted(normalize=normalize, **options), [2, 5, 8, 3]) for normalize in (True, False)))


def test_unigram_of_vectors_is_that_of_their_pairs() -> None:
    model, table = make(estimate="skip-gram"), joint()
    model.set_joint(table)
    loss = model.pair_loss()
    model.settle()
    shares = (model.past @ model.future.t()).softmax(-1)
    assert_close(model.unigram.exp(), (table.sum(1) / table.sum()) @ shares)
    assert_close(loss, -(table / table.sum() * shares.log()).sum())


@pytest.mark.parametrize("estimate", ["counts", "skip-gram"])
def test_own_residual_with_beta_of_minus_1_is_the_bigram_model(estimate: str) -> None:
    near = joint(1)
    out = logprobs(counted(beta=-1, residual="own", estimate=estimate), [2, 5, 7])
    assert_close(out.exp(), near[7] / near[7].sum())


@pytest.mark.parametrize("options", POOLS)
@pytest.mark.parametrize("beta", [0.25, "exact"])
def test_steps_padding_and_selected_rows_equal_one_pass(options: dict[str, Any], beta: Any) -> None:
    model = counted(beta=beta, residual="own", **options)
    ids = torch.tensor([[2, 5, 7, 5, 8], [2, 4, 4, 6, 1]])
    whole = model.hidden(None, ids)
    _, state = model.advance(ids[:, :2], model.start(None, 2))
    state = state.select(torch.tensor([1, 0, 1]), None)
    for column in range(2, 5):
        out, state = model.step(ids[[1, 0, 1], column : column + 1], state)
        assert_close(out[:, 0], whole[[1, 0, 1], column])
    padded = torch.tensor([[2, 5, 7, 0, 0], [2, 4, 0, 0, 0]])
    out, _ = model.step(torch.tensor([[5], [4]]), model.start(padded))
    assert_close(out[0, 0], whole[0, 3])
    assert_close(out[1, 0], logprobs(model, [2, 4, 4]))


def test_pairs_and_neighbors_are_counted() -> None:
    rows = [torch.tensor(ids) for ids in ([5, 6, 5, 7], [8, 5], [6, 6, 6, 6])]
    pairs, near = torch.zeros(SIZE, SIZE), torch.zeros(SIZE, SIZE)
    for row in rows:
        inputs = [2, *row[:-1].tolist()]
        for position, token in enumerate(row):
            near[inputs[position], token] += 1
            for before in inputs[: position + 1]:
                pairs[before, token] += 1
    for batches in ([torch.nn.utils.rnn.pad_sequence(rows, True)], [row[None] for row in rows]):
        found = no_counts(SIZE), no_counts(SIZE)
        for batch in map(batch_of, batches):
            add_pairs(found[0], batch)
            add_neighbors(found[1], batch)
        assert torch.equal(found[0].float(), pairs)
        assert torch.equal(found[1].float(), near)


def test_smoothing_adds_its_strength_to_each_row() -> None:
    counts = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    counts[2, 5], counts[5, 6] = 7, 3
    table = smoothed(counts, 20.0)
    assert bool((table > 0).all())
    assert_close(table.sum(1), counts.sum(1) + 20)


@pytest.mark.parametrize(
    ("corpus", "best", "low", "high"), [("toy-topics", 9.0535, 0.98, 1.03), ("toy-chains", 2.9323, 6, 20)]
)
def test_perplexity_is_the_best_possible_only_where_the_assumption_holds(
    corpus: str, best: float, low: float, high: float
) -> None:
    """`best` is the perplexity of the source itself in blocks of 32 tokens."""
    source = SOURCES[corpus]
    ids = {word: number for number, word in enumerate(source.next_words(()), 4)}  # every word is a token

    def blocks(split: str, lines: int) -> Batch:
        words = (word for row in source.rows(split, lines, 1) for word in (*row.target.split(), END))
        return batch_of(torch.tensor([ids[word] if word else 3 for word in words][: lines * LINE]).view(-1, 32))

    model, test = make(4 + len(ids)), blocks("test", 30)
    model.count([blocks("train", 120)])
    nll = -model.hidden(None, test.input).gather(2, test.output[..., None]).mean()
    assert low < float(nll.detach().exp()) / best < high
