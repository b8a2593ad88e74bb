"""Sums of kernel attention: y = phi(q) (sum phi(k) v^T) / phi(q) (sum phi(k)), in linear time.

Letters as in attention.py.  A value gets one more column of ones, so that numerator and denominator
are one product: u = phi(q) S with S [B, H, M, E + 1], and y = u[..., :E] / u[..., E].

These are the plain forms, ordinary differentiable code for every device; blocked.py has the same
sums for a CPU.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Sums: TypeAlias = tuple[Tensor, Tensor | None]
"""S [B, H, M, E + 1] in units of exp(peak), and the peak [B, H] where features are exponentials."""


class Maps(NamedTuple):
    """Feature maps of queries and keys, each position by itself."""

    q: Callable[[Tensor], Tensor]
    k: Callable[[Tensor, Tensor], Tensor]
    exponent: bool
    """Whether k answers the logarithm of the features."""
    parameters: tuple[Tensor, ...] = ()
    """What the maps learn."""


def widest(dtype: torch.dtype) -> torch.dtype:
    """Sums are kept in float32 at least."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def shifted_exp(x: Tensor) -> Tensor:
    """e^x up to a factor a row [..., M], the largest 1 and none so small that a product is 0."""
    tiny: float = torch.finfo(x.dtype).tiny ** 0.5
    return (x - x.detach().amax(-1, keepdim=True)).exp() + tiny


def quotient(u: Tensor) -> Tensor:
    """[..., E + 1] -> [..., E]: a quotient where 0/0, a query that sees no key, is 0."""
    below = u[..., -1:]
    return u[..., :-1] / below.masked_fill(below == 0, 1)


def answer(features: Tensor, sums: Sums) -> Tensor:
    """Answer queries, given as features [B, H, T, M], from sums: [B, H, T, E]."""
    return quotient(features @ sums[0])


def finite(peak: Tensor) -> Tensor:
    """A shift that can be subtracted: 0 where no key has been seen, and the peak is -inf."""
    return peak.masked_fill(peak == -torch.inf, 0)


def prepare(maps: Maps, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Features of keys [B, H, S, M] (0, or -inf for logarithms, on pads) and values with ones."""
    k, v = k.to(widest(k.dtype)), v.to(widest(v.dtype))
    if real is None:
        seen = torch.ones((), dtype=torch.bool, device=k.device).expand(k.shape[0], k.shape[2])
        return maps.k(k, seen), F.pad(v, (0, 1), value=1.0)
    # where, not a product: garbage in pads may be infinite, and infinity times zero is NaN
    pads = ~real[:, None, :, None]
    phi = maps.k(k.masked_fill(pads, 0), real)
    phi = phi.masked_fill(pads, -torch.inf if maps.exponent else 0)
    return phi, F.pad(v.masked_fill(pads, 0), (0, 1), value=1.0)


def add(phi: Tensor, values: Tensor, exponent: bool, *, channels: bool = False) -> Sums:
    """Sums over all keys of what `prepare` made; `channels`: a peak [B, H, M] for each feature."""
    if not exponent:
        return phi.transpose(-1, -2) @ values, None
    peak = phi.detach().amax(2 if channels else (2, 3))
    shift = finite(peak)
    phi = (phi - (shift.unsqueeze(2) if channels else shift[..., None, None])).exp()
    return phi.transpose(-1, -2) @ values, peak


def merge(old: Sums | None, new: Sums) -> Sums:
    """Sums over the keys of both, in units of the higher peak."""
    if old is None:
        return new
    if old[1] is None or new[1] is None:
        return old[0] + new[0], None
    peak = torch.maximum(old[1], new[1])
    first, second = (_factor(part - finite(peak)) for part in (old[1], new[1]))
    return old[0] * first + new[0] * second, peak


def _factor(rise: Tensor) -> Tensor:
    """e^rise, [B, H] or [B, H, M], as a factor of sums [B, H, M, E + 1]."""
    return rise.exp()[(..., *(None,) * (4 - rise.dim()))]


def plain_causal(
    features: Tensor, phi: Tensor, values: Tensor, old: Sums | None, exponent: bool, chunk: int
) -> tuple[Tensor, Sums]:
    """Causal sums in chunks, all at once: a small square in each, running sums between them.

    features [B, H, T, M]; phi the same, or logarithms (-inf on pads); values [B, H, T, E + 1].
    Exponentials are shifted by the running maximum at each query, so no later key has a say.
    """
    length = features.shape[2]
    size = min(chunk, length)
    spare = -length % size
    if spare:
        features, values = (F.pad(x, (0, 0, 0, spare)) for x in (features, values))
        phi = F.pad(phi, (0, 0, 0, spare), value=-torch.inf if exponent else 0.0)
    features, phi, values = (torch.unflatten(x, 2, (-1, size)) for x in (features, phi, values))
    if not exponent:
        outer = phi.transpose(-1, -2) @ values  # [B, H, chunks, M, E + 1]
        after = outer.cumsum(2) if old is None else outer.cumsum(2) + old[0].unsqueeze(2)
        before = after - outer
        square = (features @ phi.transpose(-1, -2)).tril()
        y = quotient(square @ values + features @ before)
        return y.flatten(2, 3)[:, :, :length], (after[:, :, -1], None)
    own = phi.detach().amax(-1)  # [B, H, chunks, C]
    start = own.new_full(own.shape[:2], -torch.inf) if old is None else old[1]
    assert start is not None
    peak = torch.maximum(own.flatten(2).cummax(-1).values, start[..., None]).view_as(own)
    psi = (phi - finite(own).unsqueeze(-1)).exp()
    shift = finite(peak)
    later = torch.ones(size, size, dtype=torch.bool, device=own.device).triu(1)
    factor = (own.unsqueeze(-2) - shift.unsqueeze(-1)).masked_fill(later, -torch.inf).exp()
    square = features @ psi.transpose(-1, -2) * factor
    outer = (psi * (own - shift[..., -1:]).exp().unsqueeze(-1)).transpose(-1, -2) @ values
    sums = torch.zeros_like(outer[:, :, 0]) if old is None else old[0]
    states, entry = list[Tensor](), list[Tensor]()
    for number in range(outer.shape[2]):
        states.append(sums)
        entry.append(start)
        end = peak[:, :, number, -1]
        sums = sums * (start - finite(end)).exp()[..., None, None] + outer[:, :, number]
        start = end
    rescale = (torch.stack(entry, 2).unsqueeze(-1) - shift).exp().unsqueeze(-1)
    y = quotient(square @ values + features @ torch.stack(states, 2) * rescale)
    return y.flatten(2, 3)[:, :, :length], (sums, start)
