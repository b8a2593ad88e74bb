"""Linear attention: y = phi(q) sum phi(k) v^T / phi(q) sum phi(k), phi(x) = elu(x) + 1.

Linear time in both directions, chunked when causal, a state of constant size when decoding.
Unscaled, as in the source: Katharopoulos et al. 2020, "Transformers are RNNs", equation 7.

Worked number: q = k = v = rows (1, 0), (0, 1), (1, 1) give similarities (5, 4, 6), (4, 5, 6),
(6, 6, 8); the first answer is (.7333, .6667), and causally the second is (.4444, .5556).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Kernel, Mask, Shape, numbers


class Linear(Kernel):
    """elu(x) + 1 as the feature map of queries and keys; cost T*D*E."""

    def phi_q(self, q: Float[Tensor, "B H T D"]) -> Float[Tensor, "B H T D"]:
        """elu(q) + 1, positive."""
        return F.elu(q) + 1

    def phi_k(
        self, k: Float[Tensor, "B H S D"], valid: Bool[Tensor, "b S"]
    ) -> Float[Tensor, "B H S D"]:
        """elu(k) + 1, positive."""
        return F.elu(k) + 1

    @classmethod
    def worked(cls) -> tuple[Tensor, Tensor]:
        """See `Attention.worked`; both directions, one below the other."""
        mechanism = cls(Shape(heads=1, head_width=2, max_length=3))
        x = numbers((1, 0), (0, 1), (1, 1))
        masks = (Mask.packed(3, x.device, causal=causal) for causal in (False, True))
        got = torch.cat([mechanism(x, x, x, mask).y for mask in masks], 2)
        both = ((11 / 15, 10 / 15), (10 / 15, 11 / 15), (0.7, 0.7))
        return got, numbers(*both, (1, 0), (4 / 9, 5 / 9), (0.7, 0.7))
