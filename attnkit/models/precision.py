"""16-bit matrix products for inference."""

import torch

from attnkit.errors import UnavailableError, UsageError
from attnkit.models.base import Model
from attnkit.ops.onednn import Linear

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def lower_precision(model: Model, precision: str) -> None:
    """Convert the linear layers of a model to a lower precision, for inference only.

    Softmax, norms, residual connections and log-probabilities stay in float32.

    Raises:
        UnavailableError: The model's device has no fast products of this precision.
        UsageError: The model has no linear layers.
    """
    if precision == "fp32":
        return
    device = model.output.weight.device.type
    if not _has_products(device, precision):
        raise UnavailableError(f"this {device} does not support {precision} matrix products: use fp32")
    layers = [part for part in model.modules() if isinstance(part, Linear)]
    if not layers:
        raise UsageError(f"precision {precision}: this model has no linear layers; use fp32")
    for layer in layers:
        layer.lower(DTYPES[precision])


def _has_products(device: str, precision: str) -> bool:
    if device == "cpu":
        return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")())
    return precision != "bf16" or device != "cuda" or torch.cuda.is_bf16_supported()
