"""Hugging Face models by the `hf` extra: opened safely and quietly."""

from attnkit.huggingface.opening import Pretrained, Shape, installed, open_model
from attnkit.huggingface.quiet import quiet

__all__ = [
    "Pretrained",
    "Shape",
    "installed",
    "open_model",
    "quiet",
]
