"""Experiments with interchangeable attention mechanisms in one sequence-to-sequence model.

    import attnkit

    model = attnkit.load("demo")
    model.generate(["The tired kings will paint boats."])
    model.attention("The tired kings will paint boats.").maps["cross"][0, 1]

See docs/python.md. Modules are imported on first use.
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
    "ORT_DISABLE_TELEMETRY": "1",  # onnxruntime resolves its host 8 s after the first session
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers requests other files from the hub
    "GRADIO_ANALYTICS_ENABLED": "False",  # trackio uses gradio
    "WANDB_ERROR_REPORTING": "False",
}
"""Variables that stop libraries from contacting servers, also in child processes; values set by the user win."""
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
