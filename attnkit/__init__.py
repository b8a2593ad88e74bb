"""Experiments with interchangeable attention mechanisms in one sequence-to-sequence model.

    import attnkit

    model = attnkit.load("demo")
    model.generate(["The tired kings will paint boats."])
    model.attention("The tired kings will paint boats.").maps["cross"][0, 1]

docs/python.md has the rest.  Nothing is imported until it is used.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnkit.api import contexts as contexts
    from attnkit.api import evaluate as evaluate
    from attnkit.api import load as load
    from attnkit.api import train as train

__version__ = "0.1.0"

SILENCED = {
    "DO_NOT_TRACK": "1",
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime looks its host up 8 s after the first session
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers asks the hub for other files
    "GRADIO_ANALYTICS_ENABLED": "False",  # of trackio
    "WANDB_ERROR_REPORTING": "False",
}
"""What keeps libraries from calling home, here and in every process that is started; a variable
that the user has set stays as it is."""
for _name, _value in SILENCED.items():
    os.environ.setdefault(_name, _value)
_FUNCTIONS = ("contexts", "evaluate", "load")
_PACKAGES = ("attention", "layers", "mechanisms", "nbce", "train")


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(import_module("attnkit.api"), name)
    if name in _PACKAGES:
        return import_module(f"attnkit.{name}")
    raise AttributeError(f"module 'attnkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_FUNCTIONS, *_PACKAGES]
