"""Hugging Face models by the `hf` extra: opened safely and quietly.

Start with `opening.open_model` (a name or folder becomes a model), `opening.Pretrained` and
`hub.model_folder` (what is there without a network). Imports `storage` and what is below them.
"""

from attnkit.huggingface.opening import Pretrained as Pretrained
from attnkit.huggingface.opening import open_model as open_model
from attnkit.huggingface.quiet import quiet as quiet
