"""Tests of invalid options: each raises an error of one line that names the option and what is valid."""

import math
from typing import Any

import pytest

from attnkit.errors import UsageError
from attnkit.layers import MultiHead

PART, DENSE = "synthesizer-factorized-random", "synthesizer-factorized-dense"
FACTORS = r"two numbers whose product is 64, the positions of the layer, such as \[8, 8\], got \[4, 4\]"
GAUSSIAN_KEY_NORM = "key_norm is an option of the whole layer: set it on mixture, not on gaussian"
SIGMOID_OF_THREE = "mixture: combine: sigmoid takes exactly two parts, got 3"
INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("additive", {"hidden": 0}, "hidden must be at least 1, got 0"),
    ("atrous", {"rate": 0}, "rate must be at least 2, got 0"),
    ("block-topk", {"block": 16, "blocks": 5}, "must be at most 4, as 64 tokens are 4 blocks of 16"),
    ("differential", {"lambda_init": 1.0}, "lambda_init must be at least 0 and below 1, got 1.0"),
    ("differential", {"lambda_init": -0.1}, "lambda_init must be at least 0 and below 1"),
    ("differential", {"lambda_init": "depth"}, "a number or by-depth"),
    ("dot", {"exclusive": True, "cross": True}, "cannot be cross attention: exclusive"),
    ("dot", {"attention_dropout": 1.0}, "attention_dropout must be a number >= 0 and < 1"),
    ("dot", {"entropy_scale": {"base": 1}}, r"a mapping of base \(a number > 1\), floor \(a"),
    ("dot", {"entropy_scale": {"bas": 2}}, r"\(a whole number >= 0\), test_only \(true or false\)"),
    ("dot", {"entropy_scale": "yes"}, "entropy_scale must be true or false or .* got 'yes'"),
    *(("dot", {"key_heads": n}, rf"key_heads must divide heads \(2\), got {n}") for n in (0, 3)),
    ("dot", {"logit_cap": 0.0}, "logit_cap must be a number > 0"),
    ("dot", {"logit_cap": math.inf}, "logit_cap must be a number > 0"),
    ("dot", {"qk_norm": True, "key_norm": True}, "qk_norm and key_norm exclude each other"),
    ("dot", {"residual_scores": "sum"}, "residual_scores must be true or false or .* got 'sum'"),
    ("dot", {"score_noise": -1}, "score_noise must be a number >= 0, got -1"),
    ("dot", {"short_conv": 1}, "short_conv must be a whole number >= 2 and <= 32"),
    ("dot", {"short_conv": 4, "cross": True}, "short_conv: it convolves the tokens of one"),
    ("dot", {"value_residual": True, "cross": True}, "cannot be cross attention: value_res"),
    *(("entmax", {"alpha": alpha}, "alpha must be") for alpha in (0.99, 101, math.nan, "fixed")),
    ("fixed-pattern", {"patterns": ()}, "patterns must be among previous, .*, got none"),
    ("fixed-pattern", {"patterns": ("prior",)}, r"a list: \[one of previous, .*'prior'"),
    ("forgetting", {"gate_bias": math.inf}, "gate_bias must be finite"),
    ("gated-delta", {"strength": 3.0}, "strength must be above 0 and at most 2"),
    ("interleaved", {"parts": ("local", "interleaved")}, "interleaved; choose from"),
    ("interleaved", {"parts": ("local", "mixture")}, "mixture cannot be a part of interleaved"),
    ("interleaved", {"parts": ("local", {"name": "dot", "window": 3})}, "has no option 'window'"),
    ("interleaved", {"parts": ("local",)}, "must be a list of at least two mechanisms"),
    ("linear", {"features": 0}, "features must be at least 1, got 0"),
    ("linear", {"residual_scores": True}, "linear has no option 'residual_scores'"),
    ("linear", {"qk_norm": True}, "no option 'qk_norm'"),
    ("linformer", {"rank": 0}, "rank must be at least 1, got 0"),
    ("local", {"window": -1}, "window must be at least 0, got -1"),
    ("mixture", {}, r"mixture needs parts; write {name: mixture, parts: \["),
    ("mixture", {"parts": "dot"}, "parts must be a list of at least two mechanisms, .* got 'dot'"),
    ("mixture", {"parts": ("dot",)}, r"parts must be a list of at least two .* got \('dot',\)"),
    ("mixture", {"parts": ("dot", 3)}, "a part must be the name of a mechanism, or {name: NAME} with .* got 3"),
    ("mixture", {"parts": ("dot", {"rank": 3})}, "a part must be the name of a mechanism, or {name: NAME}"),
    ("mixture", {"parts": ("dot", "gausian")}, "called 'gausian'; did you mean gaussian"),
    ("mixture", {"parts": ("dot", "linear")}, "linear cannot be a part of mixture; choose from"),
    ("mixture", {"parts": ("dot", "fixed-pattern")}, "fixed-pattern cannot be a part of mixture"),
    ("mixture", {"parts": ("dot", "mixture")}, "mixture cannot be a part of mixture"),
    ("mixture", {"parts": ("dot", "selective")}, "selective cannot be a part of mixture"),
    ("mixture", {"parts": ("dot", {"name": PART, "rnak": 3})}, "'rnak'; did you mean rank"),
    ("mixture", {"parts": ("dot", {"name": PART, "rank": 0})}, "rank must be at least 1, got 0"),
    ("mixture", {"parts": ("dot", {"name": "gaussian", "key_norm": True})}, GAUSSIAN_KEY_NORM),
    ("mixture", {"parts": ("gaussian", {"name": "dot", "key_heads": 1})}, "key_heads is an option of the whole layer"),
    ("mixture", {"parts": ("dot", {"name": "gaussian", "rank": 1})}, "option 'rank'; it has none"),
    ("mixture", {"parts": ("dot", "gaussian", "additive"), "combine": "sigmoid"}, SIGMOID_OF_THREE),
    ("nystrom", {"conv": 4}, "conv must be an odd number of positions, got 4"),
    ("nystrom", {"landmarks": 0}, "landmarks must be at least 1, got 0"),
    ("performer", {"features": -3}, "features must be at least 1, got -3"),
    ("performer", {"redraw_every": -1}, "redraw_every must be at least 0"),
    *(("sigmoid", {"bias": bias}, "bias must be") for bias in ("log", math.nan, math.inf)),
    ("sparse", {"rate": 0}, "rate must be at least 2, got 0"),
    ("synthesizer-dense", {"layers": 3}, "layers must be one of 1, 2, got 3"),
    ("synthesizer-dense", {"qk_norm": True}, "qk_norm needs queries and keys"),
    ("synthesizer-dense", {"reads": "head"}, "reads must be one of layer, slice, got 'head'"),
    ("synthesizer-random", {"key_norm": True}, "key_norm needs keys"),
    ("synthesizer-random", {"scale": 0}, "scale must be above 0, got 0"),
    (PART, {"rank": 0}, "rank must be at least 1, got 0"),
    (DENSE, {"layout": "tiel"}, "one of outer, tile, got 'tiel'"),
    (DENSE, {"factors": (4, 4)}, FACTORS),
    (DENSE, {"factors": (-8, -8)}, r"got \[-8, -8\]"),
    (DENSE, {"factors": (64,)}, r"got \(64,\)"),
]


@pytest.mark.parametrize(("word", "options", "message"), INVALID)
def test_invalid_option_raises(word: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        MultiHead.build(word, 8, 2, 64, **options)
    assert "\n" not in str(caught.value)


def test_differential_with_an_odd_head_width_raises() -> None:
    with pytest.raises(UsageError, match="even width, got 3"):
        MultiHead.build("differential", 6, 2, 9)
