"""Options that mechanisms share; `attention.Scored` and `layers.MultiHead` act on them."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from attnkit.errors import UsageError


class EntropyScale(NamedTuple):
    """How scores grow with the number n of allowed keys: by the factor log n / log base.

    The entropy of the weights then grows more slowly with n; by how much depends on the spread of
    the scores: for scores from N(0, 1) and base 64 it is 3.7 nats at 64 keys and 6.3 at 4,096,
    where it is 7.8 without the factor.  Source: Su 2021, "Entropy invariance of the scale of
    attention" (spaces.ac.cn/archives/8823), and Chiang and Cholak 2022.
    """

    base: float = 512.0
    """Number of keys at which the factor is 1."""
    floor: int = 1
    """Smallest number of keys that the factor is computed for."""
    test_only: bool = False
    """For models trained without the factor: only in evaluation, and at least 1."""


class LayerOptions(NamedTuple):
    """Options that every mechanism takes; `layers.MultiHead` acts on them."""

    output_gate: Literal["head", "element"] | None = None
    """Multiply what the heads answer by sigmoid(x W_g), a gate a head or a channel of it, before
    the output projection (Qiu et al. 2025)."""
    output_norm: Literal["rms"] | None = None
    """Divide what each head answers by its root mean square, times a learned scale a channel,
    before the output gate (RMSNorm; as in the layers of Sun et al. 2023 and Yang et al. 2024)."""
    short_conv: int | None = None
    """Self-attention: a causal depthwise convolution over so many tokens, with SiLU behind it, on
    queries, keys and values (4 in Yang et al. 2024)."""
    exclusive: bool = False
    """Self-attention: take from what a head answers tanh(a) times its part along the token's own
    value, a learned for each head (Zhai 2026, there with 1 for tanh(a))."""
    value_residual: bool = False
    """Self-attention: add the values of the first layer to those of later layers, times a learned
    number for each head (Zhou et al. 2024)."""


OF_ONE_SEQUENCE = {
    "short_conv": "it convolves the tokens of one sequence",
    "exclusive": "it takes the query's own value from the answer",
    "value_residual": "it adds values of the first layer of self-attention",
}
"""Options of layers of self-attention -> why there alone."""
SHORT = range(2, 33)
"""Tokens of a short convolution."""


def layer_options(options: Mapping[str, Any], word: str) -> LayerOptions:
    """Options of the layer around the mechanism `word`.  Raises UsageError for a wrong value."""
    given = LayerOptions(**options)
    if given.output_gate not in (None, "head", "element"):
        raise UsageError(f"{word}: output_gate must be head or element, got {given.output_gate!r}")
    if given.output_norm not in (None, "rms"):
        raise UsageError(f"{word}: output_norm must be rms, got {given.output_norm!r}")
    if given.short_conv is not None and given.short_conv not in SHORT:
        raise UsageError(
            f"{word}: short_conv must be from {SHORT[0]} to {SHORT[-1]} tokens, got "
            f"{given.short_conv}"
        )
    return given


class ScoreOptions(NamedTuple):
    """Options that scored mechanisms take: key_norm only with keys, qk_norm with queries too."""

    attention_dropout: float = 0.0
    """Dropout probability of the attention weights in training."""
    residual_scores: bool | Literal["mean"] = False
    """Add the scores of the layers before (RealFormer): their running sum (true), or its mean."""
    entropy_scale: bool | EntropyScale = False
    """Multiply the scores by log n / log 512, n the number of allowed keys."""
    score_noise: float = 0.0
    """Standard deviation of Gaussian noise added to the scores in training."""
    key_norm: bool = False
    """Normalise the keys to one length, so that only their direction counts (KeyNorm)."""
    qk_norm: bool = False
    """Divide queries and keys by their root mean square, times a learned scale a channel, before
    rotary positions (Henry et al. 2020; Dehghani et al. 2023, there with a layer norm)."""
    logit_cap: float | None = None
    """Keep scores within (-c, c), as c tanh(score / c) (Gemma 2)."""


def score_options(options: Mapping[str, Any], uses: str) -> ScoreOptions:
    """Shared options from a recipe, with `entropy_scale` as EntropyScale or False.

    Raises UsageError for a value out of range, and for `key_norm` and `qk_norm` where there is
    nothing to normalise.
    """
    given = ScoreOptions(**options)
    scale: Any = given.entropy_scale
    if isinstance(scale, Mapping):
        unknown = next((name for name in scale if name not in EntropyScale._fields), None)
        if unknown is not None:
            known = ", ".join(EntropyScale._fields)
            raise UsageError(f"entropy_scale has no key {unknown!r}; it has {known}")
        scale = EntropyScale(**scale)
    elif scale is True:
        scale = EntropyScale()
    if not isinstance(scale, bool | EntropyScale):
        raise UsageError(f"entropy_scale must be true, false or its options, got {scale!r}")
    if given.residual_scores not in (False, True, "mean"):
        raise UsageError(
            f"residual_scores must be true, false or mean, got {given.residual_scores!r}"
        )
    if isinstance(scale, EntropyScale) and not (scale.base > 1 and scale.floor >= 0):
        raise UsageError(
            "entropy_scale needs a base above 1 and a floor of 0 or more,"
            f" got base {scale.base} and floor {scale.floor}"
        )
    if not 0 <= given.attention_dropout < 1:
        raise UsageError(
            f"attention_dropout must be at least 0 and below 1, got {given.attention_dropout}"
        )
    if not 0 <= given.score_noise < float("inf"):
        raise UsageError(f"score_noise must be 0 or more, got {given.score_noise}")
    if given.key_norm and "k" not in uses:
        raise UsageError("key_norm needs keys, and this mechanism has none")
    if given.qk_norm and not {*"qk"} <= {*uses}:
        raise UsageError("qk_norm needs queries and keys, and this mechanism lacks one of them")
    if given.qk_norm and given.key_norm:
        raise UsageError("qk_norm is in place of key_norm; choose one of them")
    cap = given.logit_cap
    if cap is not None and not 0 < cap < float("inf"):
        raise UsageError(f"logit_cap must be above 0, got {cap}")
    return given._replace(entropy_scale=scale)
