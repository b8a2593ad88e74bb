"""Mechanisms of linear time: feature maps of queries and keys, and sums over keys and values."""

from abc import abstractmethod
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.attention.base import Out, Unscored
from attnkit.attention.cache import State
from attnkit.attention.mask import Mask, readable
from attnkit.ops.linear_attention import FeatureMaps, answers, causal, whole


class Kernel(Unscored):
    """y = phi(q) (phi(k)^T v) / (phi(q) sum phi(k)): linear time, constant state when decoding.

    A subclass fills `phi_q` and `phi_k`, each position by itself, so that every key gets a weight
    of at least 0.  Padding is removed from phi(k), so from the denominator too.  No [T, M, E]
    tensor is formed.  Sums are kept in float32 at least.
    """

    cost = "T*D*D"
    state = "constant"
    exponent: bool = False
    """Whether phi_q and phi_k return logarithms of the features.  They are then exponentiated under
    shifts that cancel, so that nothing overflows or vanishes; those of keys come from the keys that
    a query may see."""
    chunk: int = 32
    """Positions of a causal chunk: a square inside each, sums between them.  About M / 2."""

    @abstractmethod
    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T M"]:
        """Features of the queries, or their logarithms; a factor common to a query's cancels."""

    @abstractmethod
    def phi_k(self, k: Float[Tensor, "B H S D"], valid: Bool[Tensor, "b S"]) -> Float[Tensor, "B H S M"]:
        """Features of the keys, or their logarithms; those of pads are removed afterwards."""

    def maps(self) -> FeatureMaps:
        """Both maps as they are now, for this call and its backward pass."""
        return FeatureMaps(self.phi_q, self.phi_k, self.exponent)

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, state: State, *_: object) -> Out:
        """See `Unscored.attend`.  State: `linear_attention.Sums`, phi(k)^T [v, 1] and the peaks."""
        maps = self.maps()
        if k is None or v is None:
            return Out(answers(maps, q, state), state)
        real = real_keys(mask, k)
        if mask.causal:
            return Out(*causal(maps, self.chunk, q, k, v, real, state))
        return Out(*whole(maps, q, k, v, real, state))


def real_keys(mask: Mask, k: Float[Tensor, "B H S D"]) -> Bool[Tensor, "B S"] | None:
    """Which of the keys that come with this call are real; None where all are known to be."""
    if mask.layout == "packed":
        return None
    real = mask.valid[:, -k.shape[2] :]  # the mask has cached keys as well
    if readable(real) and bool(real.all()):
        return None
    return real.expand(k.shape[0], -1)
