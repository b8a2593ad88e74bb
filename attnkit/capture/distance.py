"""What exact softmax attention makes of the queries and keys of a layer, and how far a map is."""

from jaxtyping import Float
from torch import Tensor

from attnkit.attention import dot_scores, visible_softmax
from attnkit.layers import MultiHead
from attnkit.masks import Mask


def reference(
    layer: MultiHead,
    x: Float[Tensor, "B T W"],
    mask: Mask,
    memory: Float[Tensor, "B S W"] | None = None,
    bias: Float[Tensor, "b H T S"] | None = None,
) -> Float[Tensor, "B H T S"] | None:
    """softmax(q k^T / sqrt(D) + bias) on a layer's own queries and keys, whatever its mechanism.

    They are projected and rotated as the layer does it, and each query sees what the mask allows:
    all earlier tokens or the whole sequence, also where the mechanism is sparse.  `bias` is that of
    the model's positions.  None where the mechanism has no queries or no keys.
    """
    q, k, _ = layer.project(x, mask, memory)
    if q is None or k is None:
        return None
    scores = dot_scores(q * q.shape[-1] ** -0.5, k)
    if bias is not None:
        scores = scores + bias
    return visible_softmax(scores, mask.dense())


def distance(
    maps: Float[Tensor, "B H T S"], others: Float[Tensor, "B H T S"]
) -> Float[Tensor, "B H T"]:
    """Half the sum of absolute differences of each pair of rows, for any weights.

    Between distributions it is the total variation: 0 for equal rows, 1 for rows that share no key.
    """
    return (maps - others).abs().sum(-1) / 2
