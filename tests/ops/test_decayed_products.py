"""Products of queries and earlier keys whose channels decay: blocks and the plain form."""

import pytest
import torch

from attnkit.ops import decayed_products as kernel
from attnkit.ops.decayed_products import decayed_products, plain


@pytest.mark.parametrize("rate", [0.0, 0.01, 1.0, 5.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 64])
def test_blocks_are_the_plain_form_with_its_gradients(size: int, dtype: torch.dtype, rate: float) -> None:
    generator = torch.Generator().manual_seed(size)
    q, other, k, steps = (torch.randn(2, 3, size, 5, generator=generator) for _ in range(4))
    total = -(steps.abs() * rate).cumsum(-2)
    found = []
    for kind, form in ((dtype, decayed_products), (torch.float64, None)):
        given = [x.to(kind).requires_grad_() for x in (q, other, k, total)]
        one, two, *rest = given
        both = form([one, two], *rest) if form else [plain(one, *rest), plain(two, *rest)]
        slope = sum((x.square().sum() for x in both), torch.zeros(()))
        found.append([*both, *torch.autograd.grad(slope, given)])
    for fast, slow in zip(*found, strict=True):
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-9}[dtype]
        torch.testing.assert_close(fast.double(), slow, rtol=tolerance, atol=tolerance)


def test_strong_decays_take_the_plain_form_within_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()

    def watched(q: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        sizes.append(q.shape[-2])
        return plain(q, *rest)

    monkeypatch.setattr(kernel, "plain", watched)
    q = torch.ones(1, 20, 2)
    for step, expected in ((7.9, []), (8.1, [4])):  # 15 steps within a block of 16
        sizes.clear()
        decayed_products([q], q, -torch.full_like(q, step).cumsum(-2))
        assert sizes == expected
