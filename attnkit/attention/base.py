"""Base classes of attention mechanisms, with their arguments and their output.

Dimension letters: B batch, b batch or 1 if all rows are alike, T queries, S keys, H heads, D head width of queries and
keys, E width of a value, M features. Tensors are [B, H, T, D]. `layers.MultiHead` computes the projections; a
mechanism only mixes values.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit.attention.cache import State
from attnkit.attention.mask import Mask


class Shape(NamedTuple):
    """Dimensions and role of the layer that a mechanism is built for.

    `max_length` is the maximum number of positions, `cross` whether it is cross attention, `causal` whether the layer
    hides the future (None: not known), and `depth` the index of the layer, from 0.
    """

    heads: int
    head_width: int
    max_length: int
    cross: bool = False
    causal: bool | None = None
    depth: int = 0


class Out(NamedTuple):
    """Output of a mechanism, its decoding state and, with `residual_scores`, the running sum of scores."""

    y: Float[Tensor, "B H T E"]
    state: State
    scores: Float[Tensor, "B H T S"] | None = None
    values: Float[Tensor, "B H T D"] | None = None
    """Values of the layer if it is the first one, for the option `value_residual`; set by `MultiHead`."""


class AttentionCall(NamedTuple):
    """Arguments of `Attention.forward`."""

    q: Float[Tensor, "B H T D"] | None
    k: Float[Tensor, "B H S D"] | None
    v: Float[Tensor, "B H S E"] | None
    mask: Mask
    state: State = None
    prior: Float[Tensor, "B H T S"] | None = None
    """Running sum of the scores of earlier layers, for the option `residual_scores`."""
    bias: Float[Tensor, "b H T S"] | None = None
    """Position bias that is added to the scores."""
    gates: Float[Tensor, "B H T n"] | None = None
    """Gate projections of the input; n is `Attention.gates`."""


def one_head(*rows: Sequence[float]) -> Float[Tensor, "1 1 n D"]:
    """Return rows as queries, keys or values of one head, in float64; for worked numbers."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


CALL_FIELDS = {"q": "q", "k": "k", "v": "v", "g": "gates"}
"""Letter of `Attention.uses` -> field of `AttentionCall`."""


class Attention(nn.Module, ABC):
    """Base class of attention mechanisms, which mix values by queries and keys.

    A new mechanism derives from `Scored` (implement `scores`), from `Kernel` (implement `phi_q` and `phi_k`) or,
    without scores and feature maps, from `Unscored` (implement `attend`). It must be linear in the values. The
    mechanism is the last class of its file; options are the keyword-only arguments of `__init__`. Class attributes and
    the defaults of options must be literals, as the file is read without running it.
    """

    uses: ClassVar[str] = "qkv"
    """Projections that the mechanism reads: q, k, v, g for gates, and x for the head's slice of the input."""
    facts_with: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    """Class attributes that depend on the value of an option: option -> value -> attribute -> its value."""
    given: ClassVar[dict[str, dict[str, Any]]] = {}
    """Class attributes that change once an option is set: option -> attribute -> its value."""
    causal: ClassVar[bool] = True
    """Whether the mechanism can hide the future, as a decoder needs."""
    encoder: ClassVar[bool] = True
    """Whether the mechanism can attend in both directions."""
    cross: ClassVar[bool] = True
    """Whether the mechanism can attend to another sequence."""
    limit: int | str | None = None
    """Maximum number of positions that the weights support: "max_length" in a class, a number in an instance; None: no
    maximum."""
    positions: ClassVar[tuple[str, ...]] = ("rope", "alibi", "relative")
    """Position encodings (`model.positions`) that work with this mechanism."""
    map: ClassVar[str] = "exact"
    """Kind of the matrix that `weights` returns: "exact" if the mechanism computes that matrix, "effective" if it only
    gives the same output. Rows of an effective matrix may have negative entries and need not sum to 1."""
    cost: ClassVar[str] = "T*S*D"
    """Time complexity of one head, shown to users."""
    quadratic: ClassVar[bool] = True
    """Whether the time is proportional to T x S, even if only a fraction of the pairs is computed. With True, the safe
    default, batches respect `train.batch_scores` and `bench` stops at shorter lengths. A class of linear time that
    derives from `Attention` directly sets False, as `Unscored` does."""
    state: ClassVar[str] = "growing"
    """Size of the decoding state: a "growing" cache or "constant"."""
    by_distance: ClassVar[bool] = False
    """Whether keys are selected or weighted by distance, so that no two keys may share a position."""
    remembers_queries: ClassVar[bool] = False
    """Whether the state depends on earlier queries, not on keys and values alone."""
    why: ClassVar[str] = ""
    """Reason for what the mechanism cannot do, for error messages."""
    gates: ClassVar[int] = 0
    """Number of gate values per head, projected from x if `uses` contains g."""
    normalized: ClassVar[bool] = True
    """Whether each row of `weights` sums to 1."""
    softmax: bool = True
    """Whether an exact, normalized map is the softmax of scores."""
    recorded: bool = False
    """Whether the maps are being recorded. A decoder that calls the mechanism token by token sets False during these
    calls, and then calls the mechanism once more for whole rows."""
    rotary_parts: ClassVar[int] = 1
    """Number of equal slices of the head width; rotary positions rotate pairs of channels within each slice."""
    onnx: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "cross")
    """Places in which torch's ONNX exporter supports the mechanism at any length."""
    adopts_maps: ClassVar[bool] = False
    """Whether the mechanism can be initialized from the maps of another one, by `adopt_maps`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.key_heads = shape.heads
        # number of projections per head; further ones are appended along the head dimension
        self.query_sets = self.key_sets = self.value_sets = 1

    def forward(self, *args: Any, **kwargs: Any) -> Out:
        """Append k and v to the state, then compute the output of q, for any T >= 1.

        The arguments are the fields of `AttentionCall`. With k = v = None the output is computed from the state alone
        (cross attention in decoding).
        """
        return self.answer(AttentionCall(*args, **kwargs))

    def answer(self, call: AttentionCall) -> Out:
        """Compute `forward`; subclasses implement it."""
        raise NotImplementedError

    def keys_seen_later(self, length: int) -> int:
        """Return the number of the first `length` tokens that later queries can attend to."""
        return length

    @final
    def weights(
        self,
        q: Tensor | None,
        k: Tensor | None,
        v: Tensor,
        mask: Mask,
        prior: Tensor | None = None,
        bias: Tensor | None = None,
        gates: Tensor | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """Return the matrix that multiplies the values, always in evaluation mode.

        Every mechanism is linear in v, so this is `forward` with the identity matrix as values.
        """
        identity = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:3], -1)
        was_training = self.training
        self.eval()  # no dropout, no new random directions
        try:
            return self.forward(q, k, identity, mask, None, prior, bias, gates).y
        finally:
            self.train(was_training)

    def adopt_maps(self, maps: Float[Tensor, "H N N"]) -> None:
        """Initialize the mechanism from the maps of another one, averaged over texts.

        N is `shape.max_length`. Entries are multiples of the uniform weight, and 0 if no text had both positions.
        """
        raise NotImplementedError

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor] | None:
        """Return the worked number as (computed, calculated by hand): float64 tensors that agree to six decimals."""
        return None

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.shape._asdict().items())


class Unscored(Attention):
    """Base class of mechanisms without a score matrix: linear time, no position bias. Implement `attend`."""

    positions: ClassVar[tuple[str, ...]] = ("rope",)
    map: ClassVar[str] = "effective"
    quadratic: ClassVar[bool] = False
    whole_sequences: ClassVar[bool] = False
    """Whether the mechanism computes whole sequences only, without a state."""

    @abstractmethod
    def attend(
        self,
        q: Float[Tensor, "B H T D"],
        k: Float[Tensor, "B H S D"],
        v: Float[Tensor, "B H S E"],
        mask: Mask,
        state: State,
        gates: Float[Tensor, "B H T n"],
    ) -> Out:
        """Compute `forward` without scores. Arguments that `uses` lacks or that the state holds already are None."""

    def answer(self, call: AttentionCall) -> Out:
        """Call `attend`. Raises ValueError if an input in `uses` is missing or an argument is not supported."""
        name = type(self).__name__
        if call.prior is not None or call.bias is not None:
            raise ValueError(f"{name} has no attention scores: prior and bias cannot be added")
        if self.whole_sequences and call.state is not None:
            raise ValueError(f"{name} computes whole sequences and takes no state")
        cached = "kv" if self.cross and call.state is not None else ""
        for letter, field in CALL_FIELDS.items():
            if letter in self.uses and letter not in cached and getattr(call, field) is None:
                raise ValueError(f"{name} needs {field} with this call")
        return self.attend(*call[:5], call.gates)  # type: ignore[arg-type]
