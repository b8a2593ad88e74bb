"""A Transformer block: self-attention, cross attention and feed-forward with residual paths."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention import Mask, Out, State
from attnkit.layers.dropout import Dropout
from attnkit.layers.feed_forward import FeedForward
from attnkit.layers.multi_head import MultiHead


class Memory(NamedTuple):
    """What cross attention looks at."""

    mask: Mask
    rows: Float[Tensor, "B S W"] | None
    """Encoder states; None once the state has their keys and values."""
    state: State = None


class Carried(NamedTuple):
    """Running sums of scores on their way from layer to layer, where mechanisms carry them.

    Also the values of the first layer.
    """

    own: Float[Tensor, "R H T S"] | None = None
    cross: Float[Tensor, "R H T S"] | None = None
    values: Float[Tensor, "R H T D"] | None = None


def make_norm(norm: str, width: int) -> nn.LayerNorm | nn.RMSNorm:
    """The norm of sublayers: `norm` is pre or post (layer norm), or rms."""
    return nn.RMSNorm(width, eps=1e-6) if norm == "rms" else nn.LayerNorm(width)


class Block(nn.Module):
    """Self-attention, and where given cross attention and feed-forward, each with a residual path.

    Norms come before each sublayer, or with norm `post` after each sum.
    """

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
        self.before = norm != "post"

    def forward(
        self,
        x: Float[Tensor, "R T W"],
        mask: Mask,
        state: State = None,
        memory: Memory | None = None,
        carried: Carried = Carried(),  # noqa: B008 (immutable)
        bias: Float[Tensor, "b H T S"] | None = None,
    ) -> tuple[Float[Tensor, "R T W"], State, State, Carried]:
        """The new x, the states of self-attention and of cross attention, and the scores to carry.

        `memory` is what cross attention looks at; `bias` is added to the scores of self-attention.
        """
        inner = self._enter(self.norm_attention, x)
        out = self.attention(inner, mask, state=state, prior=carried.own, bias=bias, first=carried.values)
        x = self._leave(self.norm_attention, x, out.y)
        cross = Out(x, None)
        if self.cross is not None and self.norm_cross is not None and memory is not None:
            inner = self._enter(self.norm_cross, x)
            cross = self.cross(inner, memory.mask, memory=memory.rows, state=memory.state, prior=carried.cross)
            x = self._leave(self.norm_cross, x, cross.y)
        if self.feed_forward is not None and self.norm_feed_forward is not None:
            inner = self._enter(self.norm_feed_forward, x)
            x = self._leave(self.norm_feed_forward, x, self.feed_forward(inner))
        values = out.values if carried.values is None else carried.values  # the first layer's
        return x, out.state, cross.state, Carried(out.scores, cross.scores, values)

    def _enter(self, norm: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = norm(x) if self.before else x
        return y

    def _leave(self, norm: nn.Module, skip: Tensor, y: Tensor) -> Tensor:
        total: Tensor = skip + self.dropout(y)
        return total if self.before else norm(total)
