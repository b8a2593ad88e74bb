"""Products of whole numbers beside the same products in floating point."""

import pytest
import torch

from attnkit.ops import int8

pytestmark = pytest.mark.skipif(not int8.available(), reason="this processor has no int8 products")


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(7, 3), (128, 500), (300, 64)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_are_those_of_the_rounded_matrices(rows: int, inputs: int, outputs: int, with_bias: bool) -> None:
    torch.manual_seed(rows)
    x, w, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    x *= torch.logspace(-3, 3, rows)[:, None]  # each row has a scale of its own
    (whole, scale), (row, size) = int8.rounded(w), int8.rounded(x)
    given = bias if with_bias else None
    found = int8.int8_product(x, whole, scale.squeeze(1), given)
    wanted = (row.double() * size) @ (whole.double() * scale).t() + (bias if with_bias else 0)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    exact = x.double() @ w.double().t() + (bias if with_bias else 0)
    error = (found - exact).abs().amax(1) / (x.abs().amax(1) * w.abs().max() * inputs**0.5)
    assert error.max() < 0.02
    alone = torch.cat([int8.int8_product(one, whole, scale.squeeze(1), given) for one in x[:, None]])
    assert torch.equal(alone, found)


def test_rows_of_zeros_and_rows_that_are_not_finite() -> None:
    whole, scale = int8.rounded(torch.randn(4, 6))
    x = torch.randn(4, 6)
    x[1], x[2, 3], x[3, 0] = 0, torch.nan, torch.inf
    found = int8.int8_product(x, whole, scale.squeeze(1), None)
    assert found[0].isfinite().all()
    assert torch.equal(found[1], torch.zeros(4))
    assert found[2:].isnan().all()
