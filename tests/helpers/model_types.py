"""Models of every type, as options of `ModelConfig`."""

from typing import Any

from attnkit.recipe.schema import AttentionConfig, Roles


def _recurrent(cell: str, cross: str, **more: Any) -> dict[str, Any]:
    attention = Roles(cross=AttentionConfig(name=cross))
    return {"type": "recurrent", "cell": cell, "positions": "none", "attention": attention} | more


def _convolutional(**more: Any) -> dict[str, Any]:
    attention = Roles(cross=AttentionConfig(name="dot"))
    return {"type": "convolutional", "positions": "learned", "attention": attention} | more


BASELINES: dict[str, dict[str, Any]] = {
    "lstm-additive": _recurrent("lstm", "additive", heads=1),
    "lstm-dot": _recurrent("lstm", "dot", heads=1, tie="none"),
    "lstm-fed": _recurrent("lstm", "dot", heads=1, input_feeding=True),
    "gru-scaled-dot": _recurrent("gru", "scaled-dot", tie="decoder", bias=False),
    "sru-additive": _recurrent("sru", "additive", heads=1),
    "convs2s": _convolutional(heads=1),
    "convs2s-even": _convolutional(kernel=4, positions="none", tie="none"),
    "convs2s-narrow": _convolutional(kernel=1, tie="decoder"),
}
"""Encoder-decoders other than Transformers."""
MODEL_TYPES = {"transformer": {}, **BASELINES}
