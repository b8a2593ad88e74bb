"""What exact softmax attention makes of the queries and keys of a layer, and how far a map is."""

from jaxtyping import Float
from torch import Tensor

from attnkit.attention import dot_scores, visible_softmax
from attnkit.attention.mask import Mask


def reference(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G S D"],
    mask: Mask,
    bias: Float[Tensor, "b H T S"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """softmax(q k^T / sqrt(D) + bias), with all that the mask allows in sight.

    That is all earlier tokens, or the whole sequence, also where a mechanism is sparse.  H / G
    neighbouring heads share one of keys; `bias` is that of the model's positions.
    """
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
