"""Hugging Face models by the `hf` extra: opened safely and quietly, their tokens spelled out."""

from attnkit.huggingface.opening import Pretrained, Shape, installed, open_model
from attnkit.huggingface.quiet import quiet
from attnkit.huggingface.spelling import Speller, encode

__all__ = [
    "Pretrained",
    "Shape",
    "Speller",
    "encode",
    "installed",
    "open_model",
    "quiet",
]
