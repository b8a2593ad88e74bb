"""Linear attention: y = phi(q) (sum phi(k) v^T) / phi(q) (sum phi(k)), in linear time.

Notation as in `attention.base`. Values get an additional column of ones, so that numerator and denominator are one
product: u = phi(q) S with S [B, H, M, E + 1], and y = u[..., :E] / u[..., E].

This is differentiable code for every device; on a CPU, sequences without an earlier state use `ops.kernel_sums` if
their features have a hand-written gradient.

Overflow: if features are exponentials, phi(q)_m phi(k)_m is e^(q_m + k_m), and the factors of the largest product may
both be far from 1. So each feature m of the keys is divided by e^peak_m, where peak_m is its maximum logarithm over
the keys. The peak is added to the logarithm of the queries, from which the maximum over m is then subtracted. Terms
that matter to a query then neither overflow nor underflow.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from attnkit.ops.fast_cpu import usable
from attnkit.ops.kernel_sums import MODERATE, Features, kernel_sums

Sums: TypeAlias = tuple[Tensor, Tensor | None]
"""S [B, H, M, E + 1] and None; or, if features are exponentials, S with feature m in units of e^peak_m and the peaks
[B, H, M], the maximum logarithms of the keys."""


class FeatureMaps(NamedTuple):
    """Feature maps of queries and keys, applied to each position independently."""

    q: Callable[[Tensor], Tensor]
    k: Callable[[Tensor, Tensor], Tensor]
    exponent: bool
    """Whether both return the logarithms of the features."""
    by_hand: Callable[[], Features] | None = None
    """Factory of the features for `kernel_sums`; None: they have no hand-written gradient."""


def widest(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype, at least float32: for sums and logarithms."""
    return torch.promote_types(dtype, torch.float32)


def shifted_exp(x: Tensor) -> Tensor:
    """Return e^x divided by its maximum in each row [..., M]."""
    return (x - x.detach().amax(-1, keepdim=True)).exp_()  # cancels in the quotient: no gradient


def quotient(u: Tensor) -> Tensor:
    """Return the numerators over the denominator, [..., E + 1] -> [..., E]; 0 / 0, a query without keys, is 0."""
    below = u[..., -1:]
    return u[..., :-1] / below.masked_fill(below == 0, 1)


def causal(
    maps: FeatureMaps, chunk: int, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, old: Sums | None
) -> tuple[Tensor, Sums]:
    """Return the outputs [B, H, T, E] of causal self-attention and the new sums; `old` are those of earlier tokens.

    q, k [B, H, T, D], v [B, H, T, E], real [B, T] (False on padding; None: no padding).
    """
    if old is None and (result := by_kernel_sums(maps, True, q, k, v, real)) is not None:
        return result
    phi, values = prepare(maps, k, v, real)
    features = maps.q(q.to(widest(q.dtype)))
    y, sums = causal_sums(features, phi, values, old, maps.exponent, chunk)
    return y.to(v.dtype), sums


def bidirectional(
    maps: FeatureMaps, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, old: Sums | None
) -> tuple[Tensor, Sums]:
    """Return the outputs and sums as `causal` does, with all keys [B, H, S, D] visible to all queries."""
    if old is None and (result := by_kernel_sums(maps, False, q, k, v, real)) is not None:
        return result
    sums = key_sums(maps, k, v, real)
    sums = merge(old, sums)
    return outputs(maps, q, sums), sums


def by_kernel_sums(
    maps: FeatureMaps, causal: bool, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None
) -> tuple[Tensor, Sums] | None:
    """Return the result of `kernel_sums`, for sequences without earlier sums; None if it is not applicable."""
    if maps.by_hand is None or not usable(q, k, v):
        return None
    if real is not None:
        # masked_fill, not a product: padding may hold infinities, and infinity times 0 is NaN
        k, v = (x.masked_fill(~real[:, None, :, None], 0) for x in (k, v))
    result = kernel_sums(maps.by_hand(), causal, q, k, v, real)
    if result is None:
        return None
    y, sums = result
    return y, (sums, sums.new_zeros(sums.shape[:3]) if maps.exponent else None)  # in units of e^0


def key_sums(maps: FeatureMaps, k: Tensor, v: Tensor, real: Tensor | None) -> Sums:
    """Return the sums over all keys [B, H, S, D] and values [B, H, S, E]; `real` as in `causal`."""
    return add(*prepare(maps, k, v, real), maps.exponent)


def outputs(maps: FeatureMaps, q: Tensor, sums: Sums) -> Tensor:
    """Return the outputs [B, H, T, E] of queries [B, H, T, D]."""
    features = maps.q(q.to(widest(q.dtype)))
    return quotient(for_peaks(features, sums[1]) @ sums[0]).to(q.dtype)


def for_peaks(features: Tensor, peak: Tensor | None) -> Tensor:
    """Return query features [B, H, T, M] for sums in units of e^peak, from logarithms unless peak is None."""
    if peak is None:
        return features
    # the unit of the sums moves to the queries before their own shift: no feature that matters is lost
    return shifted_exp(features + finite(peak).unsqueeze(2))


def moderate(phi: Tensor, old: Sums | None) -> bool:
    """Return whether neither the logarithms [B, H, T, M] of keys nor the earlier sums need a shift."""
    if not usable(phi, autocast=True) or (old is not None and old[1] is not None and old[1].any()):
        return False
    low, high = phi.detach().aminmax()
    if low == -torch.inf:  # padding
        low, high = phi.detach().masked_fill(phi == -torch.inf, 0).aminmax()
    return float(low) > -MODERATE and float(high) < MODERATE


def finite(peak: Tensor) -> Tensor:
    """Return the peak as a shift that can be subtracted: 0 if there are no keys, whose peak is -inf."""
    return peak.masked_fill(peak == -torch.inf, 0)


def prepare(maps: FeatureMaps, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return key features [B, H, S, M] (padding: 0, or -inf for logarithms) and values with ones [B, H, S, E + 1]."""
    k, v = k.to(widest(k.dtype)), v.to(widest(v.dtype))
    if real is None:
        unpadded = torch.ones((), dtype=torch.bool, device=k.device).expand(k.shape[0], k.shape[2])
        return maps.k(k, unpadded), F.pad(v, (0, 1), value=1.0)
    # masked_fill, not a product: padding may hold infinities, and infinity times 0 is NaN
    pads = ~real[:, None, :, None]
    phi = maps.k(k.masked_fill(pads, 0), real)
    phi = phi.masked_fill(pads, -torch.inf if maps.exponent else 0)
    return phi, F.pad(v.masked_fill(pads, 0), (0, 1), value=1.0)


def add(phi: Tensor, values: Tensor, exponent: bool) -> Sums:
    """Return the sums over all keys (S may be 0) of the results of `prepare`."""
    if not exponent:
        return phi.transpose(-1, -2) @ values, None
    no_peak = phi.new_full((*phi.shape[:2], phi.shape[3]), -torch.inf)
    peak = phi.detach().amax(2) if phi.shape[2] else no_peak  # amax refuses an empty dimension
    return (phi - finite(peak).unsqueeze(2)).exp_().transpose(-1, -2) @ values, peak


def merge(old: Sums | None, new: Sums) -> Sums:
    """Return the sums over the keys of both, in units of the larger peaks."""
    if old is None:
        return new
    if old[1] is None or new[1] is None:
        return old[0] + new[0], None
    peak = torch.maximum(old[1], new[1])
    old_scale, new_scale = ((part - finite(peak)).exp().unsqueeze(-1) for part in (old[1], new[1]))
    return old[0] * old_scale + new[0] * new_scale, peak


def causal_sums(
    features: Tensor, phi: Tensor, values: Tensor, old: Sums | None, exponent: bool, chunk: int
) -> tuple[Tensor, Sums]:
    """Return the outputs [B, H, T, E] of causal attention and the new sums; `old` are those of earlier tokens.

    All chunks are computed at once: C x C products inside each chunk, cumulative sums between chunks. Features of
    queries and keys (`phi`) [B, H, T, M] are logarithms if `exponent`, -inf for padding keys. Values [B, H, T, E + 1]
    have ones.
    """
    quadratic = torch.compiler.is_exporting() or features.shape[2] <= 2 * chunk
    if quadratic and not exponent and old is None:
        # T x T takes fewer operations in short rows; and an exported graph must allow any length, which chunks do not
        square = (features @ phi.transpose(-1, -2)).tril()
        return quotient(square @ values), add(phi, values, exponent)
    if exponent and moderate(phi, old):
        # without shifts all chunks are two products; with shifts each chunk is halved recursively, which takes 1.6
        # times as long (training of a Performer on 2,048 tokens)
        plain = None if old is None else (old[0], None)  # `moderate` has checked that its peaks are 0
        features, phi = shifted_exp(features), phi.exp()
        y, (total, _) = causal_sums(features, phi, values, plain, False, chunk)
        return y, (total, total.new_zeros(total.shape[:3]))  # peaks of 0: in units of e^0
    if old is not None and features.shape[2] == 1:
        return _step(features, phi, values, old)
    length, size = features.shape[2], 1 << (chunk - 1).bit_length()  # a power of two, for halving
    while size >= 2 * length:  # less padding than tokens
        size //= 2
    missing = -length % size
    if missing:
        features, values = (F.pad(x, (0, 0, 0, missing)) for x in (features, values))
        phi = F.pad(phi, (0, 0, 0, missing), value=-torch.inf if exponent else 0.0)
    features, phi, values = (torch.unflatten(x, 2, (-1, size)) for x in (features, phi, values))
    if exponent:
        y, sums = _causal_exponents(features, phi, values, old)
        return y.flatten(2, 3)[:, :, :length], sums
    outer = phi.transpose(-1, -2) @ values  # [B, H, chunks, M, E + 1]
    # exclusive cumulative sum, by a shift: subtracting each chunk from the inclusive sum would lose earlier keys to
    # rounding if later ones are much larger, and the remaining error would depend on future tokens
    earlier = F.pad(outer[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))
    earlier = earlier if old is None else earlier + old[0].unsqueeze(2)
    square = (features @ phi.transpose(-1, -2)).tril()  # [B, H, chunks, C, C]
    y = quotient(square @ values + features @ earlier)
    return y.flatten(2, 3)[:, :, :length], (earlier[:, :, -1] + outer[:, :, -1], None)


def _step(features: Tensor, phi: Tensor, values: Tensor, old: Sums) -> tuple[Tensor, Sums]:
    """Return `causal_sums` of one token; features are logarithms if `old` has peaks."""
    sums: Sums
    if old[1] is None:
        sums = torch.addcmul(old[0], phi.transpose(-1, -2), values), None
    else:
        sums = merge(old, add(phi, values, True))
    return quotient(for_peaks(features, sums[1]) @ sums[0]), sums


def _causal_exponents(q: Tensor, k: Tensor, values: Tensor, old: Sums | None) -> tuple[Tensor, Sums]:
    """Return the outputs and sums of logarithms in chunks [B, H, chunks, C, *].

    The peak of a sum must not come from a key that is later than the query. So the keys of a query are split into
    parts, each summed in its own unit: the earlier chunks, the query's own key, and for each level of recursive
    halving of the chunk the first half, seen from the second.
    """
    batch, heads, _, size, width = k.shape
    peaks = k.detach().amax(3)  # [B, H, chunks, M]
    outer = (k - finite(peaks).unsqueeze(3)).exp().transpose(-1, -2) @ values
    no_peak = k.new_full((batch, heads, width), -torch.inf)
    sums: Sums = old or (torch.zeros_like(outer[:, :, 0]), no_peak)
    before = list[Sums]()
    for chunk_sums, peak in zip(outer.unbind(2), peaks.unbind(2), strict=True):
        before.append(sums)
        sums = merge(sums, (chunk_sums, peak))
    # parts: sums [B, H, chunks, C, E + 1] and units [..., 1], first of the earlier chunks
    earlier_peaks = torch.stack([peak for _, peak in before if peak is not None], 2)
    features, unit = _in_units(q + earlier_peaks.unsqueeze(3))  # [B, H, chunks, C, M], [..., C, 1]
    parts = [(features @ torch.stack([part for part, _ in before], 2), unit)]
    features, unit = _in_units(q + k)  # the query's own key
    parts.append((features.sum(-1, keepdim=True) * values, unit))
    half = 1  # each pair of positions i < j is separated at exactly one level: it is counted once
    while half < size:
        parts.append(_second_halves(q, k, values, half))
        half *= 2
    common_unit = torch.stack([unit for _, unit in parts]).amax(0)
    u = torch.stack([part * (unit - finite(common_unit)).exp() for part, unit in parts]).sum(0)
    return quotient(u), sums


def _in_units(logarithms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the exponentials [..., M] in units of e^unit, and unit [..., 1], their maximum logarithm."""
    unit = logarithms.detach().amax(-1, keepdim=True)
    return (logarithms - finite(unit)).exp(), unit


def _second_halves(q: Tensor, k: Tensor, values: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Return what the second half of each 2 * `half` positions reads from the first half, and the units."""
    q, k, values = (torch.unflatten(x, 3, (-1, 2, half)) for x in (q, k, values))
    q, k, values = q[..., 1, :, :], k[..., 0, :, :], values[..., 0, :, :]  # [.., runs, half, *]
    peak = k.detach().amax(-2, keepdim=True)
    features, unit = _in_units(q + peak)
    u = features @ (k - finite(peak)).exp().transpose(-1, -2) @ values
    u = torch.stack((torch.zeros_like(u), u), -3)  # first halves read nothing at this level
    unit = torch.stack((torch.full_like(unit, -torch.inf), unit), -3)
    return u.flatten(3, 5), unit.flatten(3, 5)
