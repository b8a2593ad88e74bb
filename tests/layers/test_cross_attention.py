"""Tests of cross attention: masks of one row for a batch, beams, arguments that do not fit."""

import pytest
import torch
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask
from attnkit.layers import MultiHead
from attnkit.mechanisms import facts

CROSS = [word for word in mechanisms.names() if facts(word).cross and not facts(word).composite]
ROWS, KEYS, BEAMS = 3, 5, 2


def tokens(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, 16, dtype=torch.float64)


def mask(rows: int, queries: int) -> Mask:
    return Mask.cross(torch.arange(KEYS).expand(rows, KEYS) < 4, queries)


@pytest.mark.parametrize("word", CROSS)
@torch.no_grad()
def test_mask_of_one_row_applies_to_all_rows(word: str) -> None:
    torch.manual_seed(1)
    layer = MultiHead.build(word, 16, 4, 32, cross=True).double().eval()
    x, memory = tokens(ROWS, 2), tokens(ROWS, KEYS)
    one, each = (layer(x, mask(rows, 2), memory) for rows in (1, ROWS))
    torch.testing.assert_close(one.y, each.y)
    if each.state is None:
        return
    step = tokens(ROWS * BEAMS, 1)
    one, each = (layer(step, mask(rows, 1), state=output.state) for rows, output in ((1, one), (ROWS, each)))
    torch.testing.assert_close(one.y, each.y)


@pytest.mark.parametrize(
    ("x", "of_mask", "memory", "message"),
    [
        (3, 2, 3, "for 2 rows, but x has 3 and the memory 3"),
        (6, 6, 3, "for 6 rows, but x has 6 and the memory 3"),
        (4, 3, 3, "for 3 rows, but x has 4 and the memory 3"),
        (3, 3, None, "needs a memory"),
    ],
)
def test_different_numbers_of_rows_raise(x: int, of_mask: int, memory: int | None, message: str) -> None:
    layer = MultiHead.build("scaled-dot", 16, 4, 32, cross=True).double()
    with pytest.raises(ValueError, match=message):
        layer(tokens(x, 2), mask(of_mask, 2), None if memory is None else tokens(memory, KEYS))
