"""The feed-forward network of a block."""

from collections.abc import Callable
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.layers.dropout import Dropout
from attnkit.ops.onednn import Linear


class FeedForward(nn.Module):
    """Two linear layers around an activation, or three if it is gated (swiglu, geglu)."""

    functions: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "silu": F.silu,
        "swiglu": F.silu,
        "geglu": F.gelu,
    }

    def __init__(self, width: int, inner: int, activation: str, dropout: float) -> None:
        super().__init__()
        gated = activation.endswith("glu")
        self.up = Linear(width, inner)
        self.gate = Linear(width, inner) if gated else None
        self.down = Linear(inner, width)
        self.function = self.functions[activation]
        self.dropout = Dropout(dropout)
        for layer in (self.up, self.gate, self.down):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Float[Tensor, "B T W"]) -> Float[Tensor, "B T W"]:
        """Return down(dropout(f(up x))), or down(dropout(f(gate x) * up x)) if gated."""
        inner = self.up(x)
        relu = self.gate is None and self.function is F.relu  # fused into dropout
        if self.gate is not None:
            inner = self.function(self.gate(x)) * inner
        elif not relu:
            inner = self.function(inner)
        y: Tensor = self.down(self.dropout(inner, relu))
        return y
