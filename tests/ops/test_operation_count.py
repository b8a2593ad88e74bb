"""Test of the count of operations."""

import pytest
import torch

from attnkit.ops import fast_cpu
from attnkit.ops.onednn import Linear
from attnkit.ops.operation_count import count_operations


@pytest.mark.parametrize("rows", [2, 4096])
def test_operations_are_those_of_three_products(rows: int) -> None:
    layer, x = Linear(64, 96), torch.randn(rows, 64, requires_grad=True)
    operations = count_operations(lambda: layer(x).sum().backward())
    assert operations == 3 * 2 * rows * 64 * 96  # forward, and the gradients of x and of the weight
    assert not fast_cpu.PLAIN
