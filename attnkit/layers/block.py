"""A Transformer block: self-attention, cross attention and feed-forward with residual connections."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, Out, State
from attnkit.layers.dropout import Dropout
from attnkit.layers.feed_forward import FeedForward
from attnkit.layers.multi_head import MultiHead


class Memory(NamedTuple):
    """Sequence that cross attention attends to."""

    mask: Mask
    rows: Float[Tensor, "B S W"] | None
    """Encoder states; None once the state has their keys and values."""
    state: State = None


class Carried(NamedTuple):
    """Tensors passed from layer to layer: running sums of scores, and the values of the first layer."""

    scores: Float[Tensor, "R H T S"] | None = None
    cross_scores: Float[Tensor, "R H T S"] | None = None
    values: Float[Tensor, "R H T D"] | None = None


def make_norm(norm: str, width: int) -> nn.LayerNorm | nn.RMSNorm:
    """Return the norm of a sublayer: LayerNorm if `norm` is pre or post, RMSNorm if it is rms."""
    return nn.RMSNorm(width, eps=1e-6) if norm == "rms" else nn.LayerNorm(width)


class Block(nn.Module):
    """Self-attention, cross attention and feed-forward with residual connections, pre-norm unless `norm` is post."""

    def __init__(
        self,
        width: int,
        attention: MultiHead,
        cross: MultiHead | None,
        feed_forward: FeedForward | None,
        norm: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention, self.cross, self.feed_forward = attention, cross, feed_forward
        self.norm_attention = make_norm(norm, width)
        self.norm_cross = make_norm(norm, width) if cross is not None else None
        self.norm_feed_forward = make_norm(norm, width) if feed_forward is not None else None
        self.dropout = Dropout(dropout)
        self.norm_first = norm != "post"

    def forward(
        self,
        x: Float[Tensor, "R T W"],
        mask: Mask,
        state: State = None,
        memory: Memory | None = None,
        carried: Carried = Carried(),  # noqa: B008 (immutable)
        bias: Float[Tensor, "b H T S"] | None = None,
    ) -> tuple[Float[Tensor, "R T W"], State, State, Carried]:
        """Return the new x, both states and the carried tensors; `bias` is added to self-attention scores."""
        inner = self._pre_norm(self.norm_attention, x)
        out = self.attention(inner, mask, state=state, prior=carried.scores, bias=bias, first=carried.values)
        x = self._add_and_norm(self.norm_attention, x, out.y)
        cross = Out(x, None)
        if self.cross is not None and self.norm_cross is not None and memory is not None:
            inner = self._pre_norm(self.norm_cross, x)
            cross = self.cross(inner, memory.mask, memory=memory.rows, state=memory.state, prior=carried.cross_scores)
            x = self._add_and_norm(self.norm_cross, x, cross.y)
        if self.feed_forward is not None and self.norm_feed_forward is not None:
            inner = self._pre_norm(self.norm_feed_forward, x)
            x = self._add_and_norm(self.norm_feed_forward, x, self.feed_forward(inner))
        values = out.values if carried.values is None else carried.values  # the first layer's
        return x, out.state, cross.state, Carried(out.scores, cross.scores, values)

    def _pre_norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = norm(x) if self.norm_first else x
        return y

    def _add_and_norm(self, norm: nn.Module, skip: Tensor, y: Tensor) -> Tensor:
        total: Tensor = skip + self.dropout(y)
        return total if self.norm_first else norm(total)
