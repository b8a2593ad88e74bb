"""Matrix products in 16 bits, for decoding with a trained model."""

import torch
from torch import nn

from attnkit.errors import UnavailableError, UsageError
from attnkit.kernels.onednn import Linear
from attnkit.models.base import Model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def lower_precision(model: Model, precision: str) -> None:
    """Let the linear layers of a model that is not trained any more compute in a precision.

    Softmax, norms, residual paths and log-probabilities stay in float32.

    Raises:
        UnavailableError: the model's device has no fast products of this precision.
        UsageError: the model has no linear layers.
    """
    if precision == "fp32":
        return
    device, dtype = model.output.weight.device, DTYPES[precision]
    if device.type == "cpu":
        able = getattr(torch.ops.mkldnn, f"_is_mkldnn_{precision}_supported")()
    else:
        able = precision != "bf16" or device.type != "cuda" or torch.cuda.is_bf16_supported()
    if not able:
        raise UnavailableError(f"this {device.type} has no {precision} products: use fp32")
    layers = [part for part in model.modules() if isinstance(part, Linear)]
    if not layers:
        raise UsageError(f"precision {precision}: this model has no linear layers; use fp32")
    for layer in layers:
        for name, weights in list(layer.named_parameters()):
            # a new one, so that a table of tokens that shares the weights stays as it is
            setattr(layer, name, nn.Parameter(weights.detach().to(dtype), requires_grad=False))
