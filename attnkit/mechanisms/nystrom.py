"""Nystrom attention: Y = A(Q, L_k) pinv(A(L_q, L_k)) A(L_q, K) V, A(X, Z) = softmax(X Z^T/sqrt(D)).

L_q and L_k are `landmarks`, means of neighboring queries and keys; all scores are divided by sqrt(D). A row with n
real tokens has m = min(landmarks, n) of them, and its token p belongs to landmark floor(p m / n), so padding changes
nothing. A row with n <= landmarks is computed by exact softmax attention. `pinv` is `iterative` (6 steps of order
four, from a start that is scaled for each matrix separately), `exact`, or `none` for the identity: two softmaxes and
no inverse. `conv` adds a depthwise convolution of the values over real positions, with one kernel of odd size per head
(33 in the source's text models). No T x T matrix is formed.

Limits: bidirectional self-attention only. Weights may be negative, and rows of the map sum to 1 only as far as the
inverse is exact: not before the iteration converges, and not with `conv`. The gradient of `exact` grows with the
square of the inverse; similar landmarks make it useless. Time T*m*D + m^3 per head, memory T*m.

Source: Xiong et al. 2021, "Nystromformer: A Nystrom-based Algorithm for Approximating Self-Attention", equations 13 to
15 and algorithm 1.

Worked number: D = 1, Q = (0, 1, 2, 3), K = (3, 2, 1, 0), 2 landmarks, exact inverse: the last token has the weights
(.925406, .072121, .003591, -.001118).
"""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.attention import Mask, Out, Shape, Unscored, at_least, one_head
from attnkit.attention.mask import unpadded, with_pads_last
from attnkit.errors import UsageError

STEPS = 6
"""Number of steps of the iterative inverse."""
PLAIN_UP_TO = 128 * 128
"""Approximate number of scores per head up to which plain products are faster than the fused kernel on a CPU."""


class Segments(NamedTuple):
    """Assignment of tokens to landmarks."""

    landmarks: int
    """Maximum number of landmarks in a row."""
    member: Bool[Tensor, "b M T"] | None = None
    """Tokens of each landmark; None: runs of neighbors of equal length."""
    used: Bool[Tensor, "b M"] | None = None
    """Landmarks that exist in a row; None: all."""
    short: Bool[Tensor, "b 1 1 1"] | None = None
    """Rows in which each token is a landmark of its own; None: no row."""

    @classmethod
    def of(cls, mask: Mask, max_landmarks: int) -> "Segments":
        """Return the segments of the tokens, at most `max_landmarks` per row, which must be fewer than the columns."""
        if mask.k_pos.shape[1] % max_landmarks == 0 and unpadded(mask):  # runs of equal length
            return cls(max_landmarks)
        real = mask.valid.sum(1, keepdim=True)  # [b, 1]
        count = real.clamp_max(max_landmarks)
        segment = (mask.k_pos * count).div(real.clamp_min(1), rounding_mode="floor")
        slots = torch.arange(max_landmarks, device=segment.device)
        member = (segment[:, None, :] == slots[:, None]) & mask.valid[:, None, :]
        return cls(max_landmarks, member, slots < count, (real <= max_landmarks)[:, :, None, None])

    def means(self, x: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H M D"]:
        """Return the landmarks of x."""
        if self.member is None:
            return torch.unflatten(x, 2, (self.landmarks, -1)).mean(3)
        # heads side by side, so that `member` is not copied for each
        sums = self.member.to(x.dtype) @ x.transpose(1, 2).flatten(2)
        sums = torch.unflatten(sums, 2, (x.shape[1], -1)).transpose(1, 2)
        return sums / self.member.sum(2).clamp_min(1)[:, None, :, None].to(x.dtype)


def newton(kernel: Float[Tensor, "*n M M"]) -> Float[Tensor, "*n M M"]:
    """Return a pseudo-inverse by iteration; rows and columns of zeros stay zero.

    Z = Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4, from the transpose divided by the maximum row sum times the
    maximum column sum of that matrix alone.
    """
    inverse = start(kernel)
    for _ in range(STEPS):
        inverse = step(kernel, inverse)
    return inverse


def start(kernel: Float[Tensor, "*n M M"]) -> Float[Tensor, "*n M M"]:
    """Return the first value of the iteration."""
    sizes = kernel.sum(-1).amax(-1) * kernel.sum(-2).amax(-1)  # |A|_inf |A|_1, as A >= 0
    return kernel.transpose(-1, -2) / sizes.masked_fill(sizes == 0, 1)[..., None, None]


def step(kernel: Float[Tensor, "*n M M"], inverse: Float[Tensor, "*n M M"]) -> Float[Tensor, "*n M M"]:
    """Return a better inverse: I - A Z shrinks to about its fourth power."""
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
    product = kernel @ inverse
    inner = 15 * eye - product @ (7 * eye - product)
    return inverse @ (13 * eye - product @ inner) / 4


def attend(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H S D"],
    v: Float[Tensor, "B H S E"],
    allowed: Bool[Tensor, "b 1 1 S"] | None,
) -> Float[Tensor, "B H T E"]:
    """Compute softmax attention for rows that each have at least one allowed key."""
    if v.shape[3] == q.shape[3] and q.shape[2] * k.shape[2] > PLAIN_UP_TO:
        y: Tensor = F.scaled_dot_product_attention(q, k, v, allowed)
        return y
    return weights_of(q, k, allowed) @ v


def weights_of(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H S D"], allowed: Tensor | None
) -> Float[Tensor, "B H T S"]:
    """Return softmax(q k^T / sqrt(D))."""
    scores: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    scores = scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1)


def neighbors(v: Float[Tensor, "B H T E"], weights: Float[Tensor, "H 1 N 1"]) -> Float[Tensor, "B H T E"]:
    """Convolve the values over N positions around each token, with one kernel per head."""
    size = weights.shape[2]
    if v.device.type != "cpu":
        return F.conv2d(v, weights, padding=(size // 2, 0), groups=v.shape[1])
    if v.shape[2] < size:
        # here oneDNN's weight gradient of a single group writes out of bounds
        windows = F.pad(v, (0, 0, size // 2, size // 2)).unfold(2, size, 1)  # [B, H, T, E, N]
        return (windows @ weights).squeeze(-1)
    # oneDNN is faster with one channel per feature, in the layout of projections, which only 2-D convolutions read
    channels = v.transpose(1, 2).flatten(2).transpose(1, 2)[..., None]  # [B, H E, T, 1]
    y = F.conv2d(channels, weights.repeat_interleave(v.shape[3], 0), padding=(size // 2, 0), groups=channels.shape[1])
    return torch.unflatten(y[..., 0].transpose(1, 2), 2, (v.shape[1], -1)).transpose(1, 2)


class Nystrom(Unscored):
    """Attention through landmarks; cost T*landmarks*D."""

    causal = False
    cross = False
    cost = "T*landmarks*D"
    whole_sequences = True
    facts_with = {"pinv": {"exact": {"onnx": ()}}}
    why = "its landmarks are means over one whole sequence, later tokens included"

    filter: nn.Parameter | None

    def __init__(
        self,
        shape: Shape,
        *,
        landmarks: int = 64,
        pinv: Literal["iterative", "exact", "none"] = "iterative",
        conv: int | None = None,
    ) -> None:
        super().__init__(shape)
        if conv is not None and (conv < 1 or conv % 2 == 0):
            raise UsageError(f"nystrom: conv must be an odd number of positions, got {conv}")
        self.landmarks = at_least("nystrom", "landmarks", landmarks)
        self.pinv = pinv
        self.register_parameter("filter", None)
        if pinv == "iterative" or conv is not None:
            self.normalized = False  # type: ignore[misc]
        if conv is not None:
            self.filter = nn.Parameter(torch.empty(shape.heads, 1, conv, 1))
            nn.init.kaiming_uniform_(self.filter, a=5**0.5)

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, *_: object) -> Out:
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"nystrom needs as many queries as keys, got {q.shape[2]} and {k.shape[2]}")
        packed = unpadded(mask)
        visible = None
        if not packed:
            # a row of padding attends to all of it, and is zeroed at the end
            visible = (mask.valid | ~mask.valid.any(1, keepdim=True))[:, None, None, :]
        y = self._mix(q, k, v, mask, visible)
        if self.filter is not None:
            v = v if packed else v.masked_fill(~mask.valid[:, None, :, None], 0)
            taps = self.filter
            y = y + with_pads_last(lambda _, tokens: neighbors(tokens, taps), mask, v)
        if not packed:
            y = y.masked_fill(~mask.valid.any(1)[:, None, None, None], 0)
        return Out(y, None)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, visible: Tensor | None) -> Float[Tensor, "B H T E"]:
        """Compute attention from the queries to the landmarks, by the inverse, and from the landmarks to the keys."""
        if k.shape[2] <= self.landmarks:
            return attend(q, k, v, visible)
        segments = Segments.of(mask, self.landmarks)
        q_marks, k_marks, used = segments.means(q), segments.means(k), segments.used
        values = attend(q_marks, k, v, visible)  # [B, H, M, E]
        present = None
        if used is not None:
            present = (used | ~used.any(1, keepdim=True))[:, None, None, :]  # rows of padding see all
        if self.pinv != "none":
            kernel = weights_of(q_marks, k_marks, present)  # [B, H, M, M]
            if used is not None:
                kernel = kernel.masked_fill(~used[:, None, :, None], 0)  # `newton` keeps zeros
            wide = kernel.to(torch.promote_types(kernel.dtype, torch.float32))  # the inverse needs 32 bits
            inverse = newton(wide) if self.pinv == "iterative" else torch.linalg.pinv(wide)
            values = (inverse @ values.to(wide.dtype)).to(values.dtype)
        if segments.short is not None:
            values = torch.where(segments.short, segments.means(v), values)  # each token is a landmark
        # F (Z (B V)), not (F Z) (B V): the same product, but no [T, M] matrix needs to be kept
        return attend(q, k_marks, values, present)

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        mechanism = cls(Shape(heads=1, head_width=1, max_length=4), landmarks=2, pinv="exact")
        q, k = one_head((0,), (1,), (2,), (3,)), one_head((3,), (2,), (1,), (0,))
        mask = Mask.packed(4, q.device, causal=False)
        expected = one_head((0.925406, 0.072121, 0.003591, -0.001118))
        return mechanism.weights(q, k, k, mask)[:, :, 3:], expected
