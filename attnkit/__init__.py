"""Experiments with interchangeable attention mechanisms in one sequence-to-sequence model."""

import os

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
