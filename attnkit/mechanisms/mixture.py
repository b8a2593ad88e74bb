"""Mixture of scores: A = softmax(sum of a_i B_i), B_i the scores of the parts.

`parts` lists two or more mechanisms, each a word or {name: word} with its options. With `projections: shared` (the
released code) all parts read the same queries and keys; with `own` each part has its own. Values are shared. Scores
are mixed before one softmax, not maps. `combine` selects the weights: `softmax` learns one logit per part and layer,
so that they sum to 1; `sigmoid`, for exactly two parts, learns one number a: (1 - sigmoid(a)) B_1 + sigmoid(a) B_2;
`sum` adds. Logits start at 0, which weights all parts alike. A mixture can do what all of its parts can. Source: Tay
et al. 2021, "Synthesizer: Rethinking Self-Attention in Transformer Models", "Mixture of Synthesizers"; sigmoid and sum
as in its released code.

Worked number: scores (0, 2) and (2, 0) mixed by logits 0, 0 are (1, 1), so the weights are 1/2, 1/2.
"""

from functools import reduce
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit import mechanisms
from attnkit.attention import Mask, Scored, Shape, one_head


class Mixture(Scored):
    """softmax(a_1 B_1 + a_2 B_2 + ...) v; the costs of its parts."""

    composite = "parts"
    pairs = {"combine": "sigmoid"}

    def __init__(
        self,
        shape: Shape,
        *,
        parts: tuple[str | dict[str, Any], ...],
        combine: Literal["softmax", "sigmoid", "sum"] = "softmax",
        projections: Literal["shared", "own"] = "shared",
    ) -> None:
        super().__init__(shape)
        self.combine = combine
        self.own_projections = projections == "own"
        self.parts = nn.ModuleList()
        for word, options in mechanisms.parts(mechanisms.facts("mixture"), parts):
            self.parts.append(mechanisms.create(word, shape, options))
        if self.own_projections:
            self.query_sets = max(1, sum("q" in part.uses for part in self._scored()))
            self.key_sets = max(1, sum("k" in part.uses for part in self._scored()))
        self.query_blocks = all(part.query_blocks for part in self._scored())
        limits = [part.limit for part in self.parts if isinstance(part.limit, int)]
        self.limit = min(limits, default=None)
        size = {"softmax": (len(self.parts),), "sigmoid": ()}.get(combine)
        self.logits = None if size is None else nn.Parameter(torch.zeros(size))

    def key_length(self) -> float:
        """Return the key norm of the parts that have keys if they agree, otherwise 1."""
        lengths = {part.key_length() for part in self._scored() if "k" in part.uses}
        return lengths.pop() if len(lengths) == 1 else super().key_length()

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Float[Tensor, "b H T S"]:
        """Return the weighted sum of the parts' scores; their queries and keys are consecutive heads."""
        queries, keys = (() if x is None else torch.split(x, self.shape.heads, 1) for x in (q, k))
        first_q, first_k, part_scores = 0, 0, list[Tensor]()
        for part in self._scored():
            # slices of x, for parts that read them, are the last heads of the queries
            part_q: Any = queries[first_q] if "q" in part.uses else queries[-1] if queries else None
            part_k: Any = part.cached_keys(keys[first_k]) if "k" in part.uses else None
            part_scores.append(part.scores(part_q, part_k, mask))
            first_q += self.own_projections and "q" in part.uses  # the next part has the next heads
            first_k += self.own_projections and "k" in part.uses
        weights = self.mixing()
        if weights is not None:
            part_scores = [weight * scores for weight, scores in zip(weights, part_scores, strict=True)]
        return reduce(torch.add, part_scores)

    def mixing(self) -> Float[Tensor, " n"] | None:
        """Return the weights of the parts, or None for a plain sum."""
        if self.logits is None:
            return None
        if self.combine == "softmax":
            return self.logits.softmax(0)
        second = self.logits.sigmoid()
        return torch.stack((1 - second, second))

    def _scored(self) -> list[Scored]:
        return [part for part in self.parts if isinstance(part, Scored)]

    @classmethod
    def worked_number(cls) -> tuple[Tensor, Tensor]:
        shape = Shape(heads=1, head_width=2, max_length=2)
        mechanism = cls(shape, parts=("dot", "synthesizer-random")).double()
        with torch.no_grad():
            mechanism.state_dict()["parts.1.table"].copy_(one_head((2, 0), (0, 0))[0])
        q, k = one_head((0, 2), (0, 0)), one_head((1, 0), (0, 1))
        mask = Mask.packed(2, torch.device("cpu"), causal=False)
        maps = mechanism.weights(q, k, k, mask)
        got = torch.cat((mechanism.scores(q, k, mask)[:, :, :1], maps[:, :, :1]), 2)
        return got, one_head((1, 1), (0.5, 0.5))
