"""Linear attention: y = phi(q) sum phi(k) v^T / phi(q) sum phi(k), phi(x) = elu(x) + 1.

Linear time in both directions, chunked when causal, a state of constant size when decoding.
Unscaled, as in the source: Katharopoulos et al. 2020, "Transformers are RNNs", equation 7.

Worked number: q = k = v = rows (1, 0), (0, 1), (1, 1) give similarities (5, 4, 6), (4, 5, 6),
(6, 6, 8); the first answer is (.7333, .6667), and causally the second is (.4444, .5556).
"""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from attnkit.attention import Kernel


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
