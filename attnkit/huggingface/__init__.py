"""Hugging Face models by the `hf` extra: opened safely and quietly."""

from attnkit.huggingface.opening import Pretrained as Pretrained
from attnkit.huggingface.opening import open_model as open_model
from attnkit.huggingface.quiet import quiet as quiet
