"""The section `contexts` of a recipe: question answering with several passages."""

from typing import Annotated, Literal

from pydantic import Field

from attnkit.recipe.section import Count, Positive, Section, Share

Method = Literal["entropy", "entropy-free", "mean", "mean-whole", "max", "weighted", "concat",
                 "window", "cad", "best", "retrieval", "none"]  # fmt: skip


class ContextsConfig(Section):
    """Question answering with several passages (task question-answering)."""

    counts: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1, 2, 4, 8, 16, 32)
    """Numbers of passages given with each question; 1 gives only the passage that answers it."""
    methods: Annotated[tuple[Method, ...], Field(min_length=1)] = ("entropy", "mean", "concat",
                                                                   "none")  # fmt: skip
    """Methods of combining the passages, as in `attnkit nbce`; entropy-free is entropy without eta,
    mean-whole is mean without top_p.  The others are compared with the first."""
    beta: Annotated[float, Field(ge=-1)] = 0.25
    """Pools: weight with which the distribution without context is subtracted."""
    eta: Annotated[float, Field(ge=0)] = 0.1
    """Entropy bonus, in nats, for the previously selected context (pool entropy)."""
    top_p: Share = 0.95
    """Pools: probability mass of the most probable tokens kept from each context."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Context-aware decoding (cad): strength of the contrast with decoding without context."""
    limit: Count = 0
    """Maximum number of tokens of the concatenated passages (concat, cad); 0 is data.max_length, or
    the limit of the model for one from Hugging Face."""
    rows: Count = 0
    """Number of questions of a split to ask, from the first; 0 asks all."""
    seed: Count = 1
    """Random seed of the choice of passages and of their order."""
