"""Hugging Face models, with the extra `hf`.

Start with `opening.open_model` (opens a hub name or folder), `opening.Pretrained` (the opened model) and
`hub.model_folder` (finds or downloads the files). Imports `runs` and the layers below it.
"""

from attnkit.huggingface.opening import Pretrained as Pretrained
from attnkit.huggingface.opening import open_model as open_model
from attnkit.huggingface.quiet import quiet as quiet
