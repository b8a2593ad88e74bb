"""Options shared by mechanisms, applied by `attention.Scored` and `layers.MultiHead`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from attnkit.errors import UsageError


class EntropyScale(BaseModel):
    """Scaling of the scores by log n / log base, where n is the number of allowed keys.

    The entropy of the weights then grows more slowly with n; by how much depends on the spread of the scores: for
    scores from N(0, 1) and base 64 it is 3.7 nats at 64 keys and 6.3 at 4,096 (7.8 without the factor).  Source: Su
    2021, "Entropy invariance of the scale of attention" (spaces.ac.cn/archives/8823), and Chiang and Cholak 2022.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    base: Annotated[float, Field(gt=1)] = 512.0
    """Number of keys at which the factor is 1."""
    floor: Annotated[int, Field(ge=0)] = 1
    """Minimum number of keys for which the factor is computed."""
    test_only: bool = False
    """Whether the factor applies only in evaluation, and is at least 1, for models trained without it."""


AsWritten = AfterValidator(lambda scale: scale.model_dump(exclude_unset=True))
"""Keeps only the fields that the author of the recipe set."""


class LayerOptions(NamedTuple):
    """Options of every mechanism, applied by `layers.MultiHead`."""

    output_gate: Literal["head", "element"] | None = None
    """Multiply the outputs of the heads by sigmoid(x W_g), with a gate for each head or for each channel of it, before
    the output projection (Qiu et al. 2025)."""
    output_norm: Literal["rms"] | None = None
    """Divide the output of each head by its root mean square, times a learned scale for each channel, before the
    output gate (RMSNorm; as in the layers of Sun et al. 2023 and Yang et al. 2024)."""
    short_conv: Annotated[int, Field(ge=2, le=32)] | None = None
    """Self-attention: width in tokens of a causal depthwise convolution, followed by SiLU, on queries, keys and values
    (4 in Yang et al. 2024)."""
    exclusive: bool = False
    """Self-attention: subtract from the output of a head tanh(a) times its component along the token's own value,
    where a is learned for each head (Zhai 2026, with 1 instead of tanh(a))."""
    value_residual: bool = False
    """Self-attention: add the values of the first layer to those of later layers, times a learned number for each head
    (Zhou et al. 2024)."""


OF_ONE_SEQUENCE = {
    "short_conv": "it convolves the tokens of one sequence",
    "exclusive": "it subtracts the component along the query's own value",
    "value_residual": "it adds values of the first layer of self-attention",
}
"""Options of self-attention only -> the reason."""


class ScoreOptions(NamedTuple):
    """Options of scored mechanisms; key_norm needs keys, qk_norm queries and keys."""

    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout probability of the attention weights in training."""
    residual_scores: bool | Literal["mean"] = False
    """Add the scores of the previous layers (RealFormer): their running sum (true) or their mean."""
    entropy_scale: bool | Annotated[EntropyScale, AsWritten] = False
    """Multiply the scores by log n / log 512, where n is the number of allowed keys."""
    score_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Standard deviation of Gaussian noise added to the scores in training."""
    key_norm: bool = False
    """Normalize the keys to one length, so that only their direction counts (KeyNorm)."""
    qk_norm: bool = False
    """Divide queries and keys by their root mean square, times a learned scale for each channel, before rotary
    positions (Henry et al. 2020; Dehghani et al. 2023 with a layer norm)."""
    logit_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Keep scores within (-c, c), as c tanh(score / c) (Gemma 2)."""


def score_options(options: Mapping[str, Any], uses: str) -> ScoreOptions:
    """Return typed options, `entropy_scale` as EntropyScale or False.  Raises UsageError if a norm cannot apply."""
    given = ScoreOptions(**options)
    if given.key_norm and "k" not in uses:
        raise UsageError("key_norm needs keys, and this mechanism has none")
    if given.qk_norm and not {*"qk"} <= {*uses}:
        raise UsageError("qk_norm needs queries and keys, and this mechanism lacks one of the two")
    if given.qk_norm and given.key_norm:
        raise UsageError("qk_norm and key_norm exclude each other; remove one")
    scale: Any = given.entropy_scale
    scale = EntropyScale(**scale) if isinstance(scale, dict) else EntropyScale() if scale else False
    return given._replace(entropy_scale=scale)
