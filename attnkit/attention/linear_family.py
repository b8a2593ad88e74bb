"""Mechanisms of linear time: feature maps of queries and keys, and sums over keys and values."""

from abc import abstractmethod
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from attnkit.attention.base import Out, Unscored
from attnkit.attention.cache import State
from attnkit.attention.mask import Mask, readable
from attnkit.kernels import causal_linear_attention_cpu, linear_attention, linear_attention_cpu


class Kernel(Unscored):
    """y = phi(q) (phi(k)^T v) / (phi(q) sum phi(k)): linear time, constant state when decoding.

    A subclass fills `phi_q` and `phi_k`, each position by itself, so that every key gets a weight
    of at least 0.  Padding is removed from phi(k), so from the denominator too.  No [T, M, E]
    tensor is formed.  Sums are kept in float32 at least.
    """

    cost: ClassVar[str] = "T*D*D"
    state: ClassVar[str] = "constant"
    exponent: bool = False
    """Whether phi_q and phi_k answer logarithms of the features.  They are then exponentiated under
    shifts that cancel, so that nothing overflows or vanishes; those of keys come from the keys that
    a query may see."""
    chunk: int = 32
    """Positions of a causal chunk: a square inside each, sums between them.  About M / 2."""

    @abstractmethod
    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T M"]:
        """Features of the queries, or their logarithms; a factor common to a query's cancels."""

    @abstractmethod
    def phi_k(
        self, k: Float[Tensor, "B H S D"], valid: Bool[Tensor, "b S"]
    ) -> Float[Tensor, "B H S M"]:
        """Features of the keys, or their logarithms; those of pads are removed afterwards."""

    def maps(self) -> linear_attention.FeatureMaps:
        """Both maps as they are now, for this call and its backward pass."""
        learned = tuple(self.parameters())
        return linear_attention.FeatureMaps(self.phi_q, self.phi_k, self.exponent, learned)

    def attend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        mask: Mask,
        state: State,
        gates: Tensor | None,
    ) -> Out:
        """See `Unscored.attend`.  State: `kernels.Sums`, phi(k)^T [v, 1] and the peaks."""
        maps = self.maps()
        if k is None or v is None:
            return Out(self._answer(maps, q, state), state)
        real = real_keys(mask, k)
        quick = linear_attention_cpu.usable(q, k, v)
        if mask.causal and k.shape[2] > 1:
            if quick and state is None:
                return Out(*causal_linear_attention_cpu.causal(maps, self.chunk, q, k, v, real))
            phi, values = linear_attention.prepare(maps, k, v, real)
            features = maps.q(q.to(linear_attention.widest(q.dtype)))
            y, state = linear_attention.plain_causal(
                features, phi, values, state, maps.exponent, self.chunk
            )
            return Out(y.to(v.dtype), state)
        if quick and k.shape[2] > 1:
            new = linear_attention_cpu.key_sums(maps, k, v, real)
        else:
            new = linear_attention.add(*linear_attention.prepare(maps, k, v, real), maps.exponent)
        state = linear_attention.merge(state, new)
        return Out(self._answer(maps, q, state), state)

    def _answer(
        self, maps: linear_attention.FeatureMaps, q: Tensor, sums: linear_attention.Sums
    ) -> Tensor:
        if q.shape[2] > 1 and linear_attention_cpu.usable(q):
            return linear_attention_cpu.answers(maps, q, sums)
        return linear_attention.answer(maps, q, sums).to(q.dtype)


def real_keys(mask: Mask, k: Float[Tensor, "B H S D"]) -> Bool[Tensor, "B S"] | None:
    """Which of the keys that come with this call are real; None where all are known to be."""
    if mask.layout == "packed":
        return None
    real = mask.valid[:, -k.shape[2] :]
    if readable(real) and bool(real.all()):
        return None
    return real.expand(k.shape[0], -1)
