"""The contract of an attention mechanism.

Letters: B batch, T queries, S keys, H heads, D head width, E value width, M features.
Layout is [B, H, T, D].  `layers.MultiHead` projects; a mechanism only mixes.
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
    """The layer that a mechanism sits in."""

    heads: int
    head_width: int
    max_length: int
    cross: bool = False
    causal: bool | None = None
    depth: int = 0


class Out(NamedTuple):
    """The output of a mechanism, its state, and scores where it carries them."""

    y: Float[Tensor, "B H T E"]
    state: State
    scores: Float[Tensor, "B H T S"] | None = None
    values: Float[Tensor, "B H T D"] | None = None
    """Of a whole layer, the first of its chain: what the option value_residual adds later."""


class AttentionCall(NamedTuple):
    """What a mechanism is called with."""

    q: Float[Tensor, "B H T D"] | None
    k: Float[Tensor, "B H S D"] | None
    v: Float[Tensor, "B H S E"] | None
    mask: Mask
    state: State = None
    prior: Float[Tensor, "B H T S"] | None = None
    """Scores of the layers before."""
    bias: Float[Tensor, "b H T S"] | None = None
    """What positions add to the scores."""
    gates: Float[Tensor, "B H T n"] | None = None
    """Projections of the input; n is `Attention.gates`."""


def one_head(*rows: Sequence[float]) -> Float[Tensor, "1 1 n D"]:
    """Queries, keys or values of one head, written as rows: for worked numbers."""
    return torch.tensor(rows, dtype=torch.float64)[None, None]


READ = {"q": "q", "k": "k", "v": "v", "g": "gates"}
"""Letters of `Attention.uses` -> fields of a call."""


class Attention(nn.Module, ABC):
    """A way of mixing values by queries and keys.  One subclass a file in `mechanisms/`."""

    uses: ClassVar[str] = "qkv"
    """Projections that exist: q, k, v, and g for gates; x stands for slices of the input."""
    facts_with: ClassVar[dict[str, dict[str, dict[str, Any]]]] = {}
    """Option -> value -> facts that differ with it."""
    given: ClassVar[dict[str, dict[str, Any]]] = {}
    """Option -> facts that differ once it is given."""
    causal: ClassVar[bool] = True
    """Can hide the future."""
    encoder: ClassVar[bool] = True
    """Can look both ways."""
    cross: ClassVar[bool] = True
    """Can attend to another sequence."""
    limit: int | str | None = None
    """Longest position that the weights allow; the literal "max_length" before the build."""
    positions: ClassVar[tuple[str, ...]] = ("rope", "alibi", "relative")
    """Position schemes of the model that work through this mechanism."""
    map: ClassVar[str] = "exact"
    """Whether `weights` is the matrix that the mechanism forms ("exact"), or what it amounts to
    ("effective"); the rows of the latter may have negative entries, and need not sum to 1."""
    cost: ClassVar[str] = "T*S*D"
    """Time of one head, in words for people."""
    quadratic: ClassVar[bool] = True
    """Whether that time grows as T x S, the number of pairs, however small its share of them.  True
    is the safe default: batches then keep to `train.batch_scores`, and `bench` stops earlier.  A
    class of linear time that derives from `Attention` directly says False, as `Unscored` does."""
    state: ClassVar[str] = "growing"
    """What decoding keeps of the past: a "growing" cache, or sums of "constant" size."""
    by_distance: ClassVar[bool] = False
    """Finds or weighs keys by their distance, so no two may stand at one position."""
    remembers_queries: ClassVar[bool] = False
    """Its state depends on earlier queries, not on keys and values alone."""
    why: ClassVar[str] = ""
    """Reason for what it cannot do, for error messages."""
    gates: ClassVar[int] = 0
    """Gate values a head, projected from x, where `uses` has g."""
    normalised: ClassVar[bool] = True
    """Whether each row of `weights` sums to 1."""
    softmax: bool = True
    """Whether an exact map with such rows is the softmax of scores."""
    recorded: bool = False
    """Whether its maps are recorded.  A decoder that must ask token by token turns it off while it
    does, and then asks once more for whole rows."""
    rotary_parts: ClassVar[int] = 1
    """Equal slices of a head's channels within which rotary positions turn pairs."""
    onnx: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "cross")
    """Places in which torch's exporter to ONNX can express it for all lengths."""
    adopts_maps: ClassVar[bool] = False
    """Whether it can begin from the maps of another mechanism: fills `adopt_maps`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.key_heads = shape.heads
        # projections of each head; those after the first come as further heads
        self.query_sets = self.key_sets = self.value_sets = 1

    def forward(self, *given: Any, **named: Any) -> Out:
        """Append k and v to the state, then answer q; any T >= 1.

        The arguments are those of `AttentionCall`.  k = v = None answers from the state alone
        (cross attention while decoding).
        """
        return self.answer(AttentionCall(*given, **named))

    def answer(self, call: AttentionCall) -> Out:
        """`forward`, for subclasses to fill."""
        raise NotImplementedError

    def keys_seen_later(self, length: int) -> int:
        """How many of the first `length` tokens later queries can see."""
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
        """The matrix that multiplies the values, always as in evaluation.

        Every mechanism is linear in v, so this is `forward` with the identity as values.
        """
        identity = torch.eye(v.shape[2], dtype=v.dtype, device=v.device).expand(*v.shape[:3], -1)
        was_training = self.training
        self.eval()  # no dropout, no new random directions
        try:
            return self.forward(q, k, identity, mask, None, prior, bias, gates).y
        finally:
            self.train(was_training)

    def adopt_maps(self, maps: Float[Tensor, "H N N"]) -> None:
        """Begin as this attention from position to position, which is averaged over texts.

        N is `shape.max_length`; entries are in multiples of the uniform weight, and 0 where no text
        had both positions.
        """
        raise NotImplementedError

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor] | None:
        """The worked number of the file: what the code gives, and what a hand calculation gives.

        Two small tensors of equal shape in float64 that agree to six decimals.
        """
        return None

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.shape._asdict().items())


class Unscored(Attention):
    """A mechanism that forms no matrix of scores: linear time, and nothing to add a bias to.

    A subclass fills `attend`.
    """

    positions: ClassVar[tuple[str, ...]] = ("rope",)
    map: ClassVar[str] = "effective"
    quadratic: ClassVar[bool] = False
    whole_sequences: ClassVar[bool] = False
    """Answers whole sequences only: no state."""

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
        """`forward` without scores.

        What `uses` lacks is None, and in cross attention keys and values once they are in the
        state.
        """

    def answer(self, call: AttentionCall) -> Out:
        """See `Attention.forward`.

        Raises ValueError for a prior, a bias or a state that it cannot take, and for a call that
        lacks what the mechanism reads.
        """
        name = type(self).__name__
        if call.prior is not None or call.bias is not None:
            raise ValueError(f"{name} has no scores of pairs: prior and bias cannot be added")
        if self.whole_sequences and call.state is not None:
            raise ValueError(f"{name} answers whole sequences: it takes no state")
        cached = "kv" if self.cross and call.state is not None else ""
        for letter, kind in READ.items():
            if letter in self.uses and letter not in cached and getattr(call, kind) is None:
                raise ValueError(f"{name} needs {kind} with this call")
        return self.attend(*call[:5], call.gates)  # type: ignore[arg-type]
