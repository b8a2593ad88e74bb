"""Base class of linear-time mechanisms with feature maps: sums over keys and values replace the score matrix."""

from abc import abstractmethod
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.attention.base import Out, Unscored
from attnkit.attention.cache import State
from attnkit.attention.mask import Mask, readable
from attnkit.ops.linear_attention import FeatureMaps, bidirectional, causal, outputs


class Kernel(Unscored):
    """Kernel attention, y = phi(q) (phi(k)^T v) / (phi(q) sum phi(k)): linear time, constant state in decoding.

    Implement `phi_q` and `phi_k`. Each maps every position independently to M features such that no key has a negative
    weight. Padding is removed from phi(k), hence also from the denominator. No [T, M, E] tensor is formed. Sums are
    computed in at least float32.
    """

    cost = "T*D*D"
    state = "constant"
    exponent: bool = False
    """Whether `phi_q` and `phi_k` return logarithms of the features. They are exponentiated after shifts that cancel
    in the quotient, so that nothing overflows or vanishes; the shifts of keys depend only on keys that the query may
    attend to."""
    chunk: int = 32
    """Number of positions in a causal chunk, about M / 2: a square matrix in each, running sums between them."""

    @abstractmethod
    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T M"]:
        """Return the features of the queries or their logarithms; a common factor of a query's features cancels."""

    @abstractmethod
    def phi_k(self, k: Float[Tensor, "B H S D"], valid: Bool[Tensor, "b S"]) -> Float[Tensor, "B H S M"]:
        """Return the features of the keys or their logarithms; features of padding are removed afterwards."""

    def maps(self) -> FeatureMaps:
        """Return both feature maps as they are now, for this call and its backward pass."""
        return FeatureMaps(self.phi_q, self.phi_k, self.exponent)

    def attend(self, q: Tensor, k: Any, v: Any, mask: Mask, state: State, *_: object) -> Out:
        """Compute kernel attention. The state is `linear_attention.Sums`: phi(k)^T [v, 1] and the peaks."""
        maps = self.maps()
        if k is None or v is None:
            return Out(outputs(maps, q, state), state)
        real = real_keys(mask, k)
        if mask.causal:
            return Out(*causal(maps, self.chunk, q, k, v, real, state))
        return Out(*bidirectional(maps, q, k, v, real, state))


def real_keys(mask: Mask, k: Float[Tensor, "B H S D"]) -> Bool[Tensor, "B S"] | None:
    """Return which keys of this call are tokens, not padding; None if all are known to be tokens."""
    if mask.layout == "packed":
        return None
    real = mask.valid[:, -k.shape[2] :]  # the mask covers cached keys too
    if readable(real) and bool(real.all()):
        return None
    return real.expand(k.shape[0], -1)
