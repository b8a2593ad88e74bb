"""n-gram models beside Kneser-Ney written out with dictionaries."""

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attnkit.data.batch import Batch
from attnkit.models import NGram, build
from attnkit.models.ngram import WITHOUT_COUNTS, discount
from attnkit.recipe.schema import ModelConfig

SIZE = 12
ROWS = torch.randint(3, SIZE, (7, 19), generator=torch.Generator().manual_seed(4)) % 8 + 3
BEGIN = torch.full((7, 1), 2)
TEXT = Batch(None, torch.cat((BEGIN, ROWS[:, :-1]), 1), ROWS, torch.arange(7).numpy(), 0)


def make(order: int) -> NGram:
    section = ModelConfig(type="n-gram", shape="decoder", order=order)
    model = build(section, (SIZE, SIZE), 32).double().eval()
    assert isinstance(model, NGram)
    model.count([TEXT])
    return model


def plain(order: int, context: tuple[int, ...]) -> list[float]:
    """p(c | context) for every c, by the formula of interpolated Kneser-Ney."""
    grams: list[Counter[tuple[int, ...]]] = []
    for length in (1, 2, 3):
        found: Counter[tuple[int, ...]] = Counter()
        for row in ROWS.tolist():
            tokens = [0, 2, *row]
            found.update(tuple(tokens[end - length : end]) for end in range(3, len(tokens) + 1))
        grams.append(found)
    counts = grams[order - 1]
    tables = [counts]
    for length in range(order - 1, 0, -1):  # in how many contexts an n-gram came
        larger = grams[length]
        kinds = Counter(gram[1:] for gram in larger)
        if length == 2:  # one context only: the begin of a block
            kinds.update({g: n - 1 for g, n in grams[1].items() if g[0] == 2})
        tables.insert(0, kinds)
    shares = [1 / SIZE] * SIZE
    for length, table in enumerate(tables, 1):
        before = context[len(context) - length + 1 :] if length > 1 else ()
        once = sum(n == 1 for n in table.values())
        off = once / (once + 2 * sum(n == 2 for n in table.values())) if once else 0.5
        here = {gram[-1]: n for gram, n in table.items() if gram[:-1] == before}
        total = sum(here.values())
        if total:
            rest = off * len(here) / total
            shares = [max(here.get(c, 0) - off, 0) / total + rest * share for c, share in enumerate(shares)]
    return shares


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("ids", [[2], [2, 5], [2, 5, 7], [2, 7, 3, 9], [2, 11, 11]])
def test_shares_are_those_of_the_formula(order: int, ids: list[int]) -> None:
    out = make(order).hidden(None, torch.tensor([ids]))[0, -1].exp()
    expected = torch.tensor(plain(order, tuple([0, *ids][-2:])), dtype=torch.float64)
    assert_close(out, expected)
    assert_close(out.sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_steps_and_pads_change_nothing(order: int) -> None:
    model = make(order)
    ids = ROWS[:3, :6]
    whole = model.hidden(None, ids)
    state = model.start(torch.nn.functional.pad(ids[:, :2], (0, 3)))
    for column in range(2, 6):
        out, state = model.step(ids[:, column : column + 1], state)
        assert_close(out[:, 0], whole[:, column])


def test_stored_trigrams_find_room_in_a_new_model() -> None:
    model = make(3)
    weights = model.state_dict()
    section = ModelConfig(type="n-gram", shape="decoder", order=3)
    other = build(section, (SIZE, SIZE), 32).double().eval()
    other.make_room(weights)
    other.load_state_dict(weights)
    assert torch.equal(other.hidden(None, ROWS), model.hidden(None, ROWS))


@pytest.mark.parametrize(("counts", "expected"), [([1, 1, 2, 5], 0.5), ([1, 4, 4], 1.0), ([3, 4], WITHOUT_COUNTS)])
def test_the_discount_follows_from_what_came_once_and_twice(counts: list[int], expected: float) -> None:
    table: Tensor = torch.tensor(counts)
    assert discount(table) == expected
