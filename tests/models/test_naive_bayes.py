"""Naive Bayes from counts: its identities, worked numbers, and pools beside plain forms."""

from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attnkit.data.batch import Batch
from attnkit.data.rows import Row
from attnkit.data.synthetic.known_source import END, LINE, SOURCES
from attnkit.models import NaiveBayes, build
from attnkit.models.counted import add_neighbours, add_pairs, no_counts
from attnkit.models.naive_bayes import smoothed
from attnkit.nbce.merge import merge
from attnkit.recipe.schema import ModelConfig, NaiveBayesConfig

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


def joint(seed: int = 0, size: int = SIZE) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((size, size), generator=generator, dtype=torch.float64) ** 3 + 1e-3


def make(size: int = SIZE, width: int = 4, **how: Any) -> NaiveBayes:
    torch.manual_seed(3)
    section = ModelConfig(type="naive-bayes", shape="decoder", width=width, naive_bayes=NaiveBayesConfig(**how))
    model = build(section, (size, size), 32).double().eval()
    assert isinstance(model, NaiveBayes)
    return model


def counted(**how: Any) -> NaiveBayes:
    """A model of a random joint count, its residual's table of another one."""
    model = make(**how)
    model.set_joint(joint())
    if how.get("residual") == "own":
        near = joint(1)
        model.neighbours = (near / near.sum(1, keepdim=True)).log() - model.unigram
    if how.get("estimate") == "skip-gram":
        model.settle()
    return model


def batch(*rows: list[int]) -> Batch:
    """Rows of ids as the text after the begin token."""
    longest = max(map(len, rows))
    output = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    begin = torch.where(output != 0, 2, 0)[:, :1]
    return Batch(None, torch.cat((begin, output[:, :-1]), 1), output, torch.arange(9).numpy(), 0)


def logs(model: NaiveBayes, ids: list[int]) -> Tensor:
    """Log-probabilities [V] of the token after `ids`."""
    with torch.no_grad():
        return model.hidden(None, torch.tensor([ids]))[0, -1]


@pytest.mark.parametrize("how", POOLS)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_probabilities_sum_to_1(how: dict[str, Any], beta: Any, residual: str) -> None:
    model = counted(beta=beta, residual=residual, **how)
    out = model.hidden(None, torch.tensor([[2, 5, 5, 8, 3, 7]]))
    assert_close(out.exp().sum(-1), torch.ones(1, 6, dtype=torch.float64), atol=1e-12, rtol=0)


@pytest.mark.parametrize("ids", [[2, 5], [2, 5, 7, 7], [3, 4, 5, 6, 7, 8, 8, 3, 2, 1]])
def test_exact_is_the_product_of_the_likelihoods_of_the_past(ids: list[int]) -> None:
    table = joint()
    product = table.sum(0) / table.sum()  # p(x)
    for id_ in ids:
        product = product * table[id_] / table.sum(0)  # p(a | x)
    expected = product / product.sum()
    assert_close(logs(counted(), ids).exp(), expected, atol=1e-12, rtol=1e-12)
    fixed = counted(beta=len(ids) - 1)  # t - 2, where t is the place of the next token
    assert_close(logs(fixed, ids).exp(), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("how", ORDERLESS)
@pytest.mark.parametrize("residual", ["none", "shared", "own"])
def test_the_order_of_the_past_says_nothing_but_which_token_is_last(how: dict[str, Any], residual: str) -> None:
    model = counted(residual=residual, **how)
    orders = permutations([2, 5, 7, 8])
    same = [logs(model, [*order, 3]) for order in orders]
    for other in same[1:]:
        assert_close(other, same[0])
    last = assert_differs if residual != "none" else assert_close
    last(logs(model, [3, 5, 7, 8, 2]), same[0])


def assert_differs(one: Tensor, other: Tensor) -> None:
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.parametrize("how", POOLS)
@pytest.mark.parametrize("beta", [-1, 0, 0.25, 1, 4])
def test_running_sums_are_the_merge_of_contexts(how: dict[str, Any], beta: float) -> None:
    model, ids = counted(beta=beta, **how), [2, 5, 7, 5, 8, 3]
    table = (joint() / joint().sum(1, keepdim=True)).log()
    rows = torch.cat(((joint().sum(0) / joint().sum()).log()[None], table[ids]))
    weights = None
    if how.get("weights") == "recency":
        faded = torch.tensor([0.7**n for n in range(len(ids) - 1, -1, -1)], dtype=torch.float64)
        weights = faded / faded.sum()
    expected, _ = merge(rows, how["pool"], beta, eta=0, top_p=1, weights=weights)
    assert_close(logs(model, ids), expected)


def set_rows(model: NaiveBayes, unigram: list[float], *rows: list[float]) -> None:
    """p(x), and p(x | a) of the tokens 1, 2, ..."""
    model.unigram = torch.tensor(unigram, dtype=torch.float64).log()
    for number, row in enumerate(rows, 1):
        model.pairs[number] = torch.tensor(row, dtype=torch.float64).log() - model.unigram


@pytest.mark.parametrize(
    ("beta", "expected"), [("exact", (0.303797, 0.379747, 0.316456)), (0, (0.398165, 0.344821, 0.257014))]
)
def test_worked_numbers_of_counts(beta: Any, expected: tuple[float, ...]) -> None:
    model = make(3, beta=beta)
    set_rows(model, [0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.2, 0.3, 0.5])
    out = logs(model, [1, 2]).exp()
    assert_close(out, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


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
    model.past.data = torch.tensor([[0.0, 0], [1, 0], [0, 2]], dtype=torch.float64)
    model.future.data = torch.tensor([[1.0, 0], [0, 1], [-1, 0.5]], dtype=torch.float64)
    model.unigram = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    out = logs(model, [1, 2]).exp()
    assert_close(out, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("how", POOLS)
@pytest.mark.parametrize("residual", ["none", "shared"])
@pytest.mark.parametrize("beta", BETAS[1:])
def test_the_normaliser_of_vectors_matters_to_the_maximum_alone(how: dict[str, Any], residual: str, beta: Any) -> None:
    how = {"estimate": "skip-gram", "residual": residual, "beta": beta} | how
    with_sum, without = (logs(counted(normalize=n, **how), [2, 5, 8, 3]) for n in (True, False))
    same = assert_differs if how["pool"] == "max" else assert_close
    same(with_sum, without)


def test_vectors_keep_one_joint_count_with_the_unigram() -> None:
    model = make(estimate="skip-gram")
    table = joint()
    model.set_joint(table)
    before = model.pair_loss()
    model.settle()
    shares = (model.past @ model.future.t()).softmax(-1)
    expected = (table.sum(1) / table.sum()) @ shares
    assert_close(model.unigram.exp(), expected)
    cross = -(table / table.sum() * shares.log()).sum()
    assert_close(before, cross)


@pytest.mark.parametrize("estimate", ["counts", "skip-gram"])
def test_with_beta_of_minus_1_a_residual_of_its_own_is_the_bigram_model(estimate: str) -> None:
    near = joint(1)
    out = logs(counted(beta=-1, residual="own", estimate=estimate), [2, 5, 7])
    assert_close(out.exp(), near[7] / near[7].sum())


@pytest.mark.parametrize("how", POOLS)
@pytest.mark.parametrize("beta", [0.25, "exact"])
def test_steps_pads_and_choice_of_rows_change_nothing(how: dict[str, Any], beta: Any) -> None:
    model = counted(beta=beta, residual="own", **how)
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
    assert_close(out[1, 0], logs(model, [2, 4, 4]))


def test_pairs_and_neighbours_are_counted_as_by_hand() -> None:
    rows = [[5, 6, 5, 7], [8, 5], [6, 6, 6, 6]]
    pairs, near = torch.zeros(SIZE, SIZE), torch.zeros(SIZE, SIZE)
    for row in rows:
        given = [2, *row[:-1]]
        for place, token in enumerate(row):
            near[given[place], token] += 1
            for before in given[: place + 1]:
                pairs[before, token] += 1
    for batches in ([batch(*rows)], [batch(row) for row in rows]):
        found = no_counts(SIZE), no_counts(SIZE)
        for part in batches:
            add_pairs(found[0], part)
            add_neighbours(found[1], part)
        assert torch.equal(found[0].float(), pairs)
        assert torch.equal(found[1].float(), near)


def test_smoothing_adds_to_each_row_as_much_as_it_says() -> None:
    counts = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    counts[2, 5], counts[5, 6] = 7, 3
    table = smoothed(counts, 20.0)
    assert bool((table > 0).all())
    assert_close(table.sum(1), counts.sum(1) + 20)


def embedded(name: str, split: str, lines: int, block: int) -> tuple[Batch, int]:
    """Blocks of an embedded corpus, and the number of ids; every word is a token."""
    source = SOURCES[name]
    words = {word: number for number, word in enumerate(source.next_words(()), 4)}
    rows: list[Row] = list(source.rows(split, lines, 1))
    stream = [words[word] if word else 3 for row in rows for word in (*row.target.split(), END)]
    whole = torch.tensor(stream[: lines * LINE]).view(-1, block)
    begin = torch.full((len(whole), 1), 2)
    place = torch.arange(len(whole)).numpy()
    return Batch(None, torch.cat((begin, whole[:, :-1]), 1), whole, place, 0), 4 + len(words)


@pytest.mark.parametrize(
    ("corpus", "best", "low", "high"), [("toy-topics", 9.0535, 0.98, 1.03), ("toy-chains", 2.9323, 6, 20)]
)
def test_it_reaches_the_best_possible_perplexity_where_its_assumption_holds_alone(
    corpus: str, best: float, low: float, high: float
) -> None:
    """`best` is the perplexity of the source itself in blocks of 32 tokens."""
    text, size = embedded(corpus, "train", 120, 32)
    model = make(size)
    model.count([text])
    new, _ = embedded(corpus, "test", 30, 32)
    nll = -model.hidden(None, new.input).gather(2, new.output[..., None]).mean()
    assert low < float(nll.detach().exp()) / best < high
