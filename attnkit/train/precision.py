"""Mixed precision: float32, or 16-bit copies of float32 master weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from attnkit.data.batch import Batch, BatchTensors
from attnkit.distributed import group
from attnkit.models import Model
from attnkit.models.precision import DTYPES
from attnkit.ops.parameters import computing_with, parameters_of
from attnkit.train.loss import Losses, LossOptions, token_losses


class ModelWithLoss(nn.Module):
    """A model with its loss, in one module for DDP and FSDP."""

    def __init__(self, model: Model, *, compiled: bool = False) -> None:
        super().__init__()
        self.model = model
        self._hidden: Callable[..., Tensor] = model.hidden
        if compiled:
            self._hidden = torch.compile(model.hidden, dynamic=True)  # one graph for all sequence lengths

    def forward(self, batch: BatchTensors, options: LossOptions) -> Losses:
        """Return the losses summed over the target tokens."""
        with record_function("attnkit: rest of the model"):
            hidden = self._hidden(batch.source, batch.input)
        with record_function("attnkit: loss"):
            return token_losses(batch.predicting(hidden), self.model.output.weight, batch.targets, options)


class Casting(nn.Module):
    """Wrapper that runs a module with 16-bit copies of its parameters; gradients are float32."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, *arguments: Any) -> Any:
        copies: dict[Tensor, Tensor] = {p: p.to(self.dtype) for p in self.inner.parameters()}
        parameters = parameters_of(self.inner)  # tied parameters under all their names
        with computing_with([p._replace(tensor=copies[p.tensor]) for p in parameters]):
            return self.inner(*arguments)


class GradientWorker:
    """Computation of losses and gradients for a float32 model.

    bf16 and fp16 compute with copies of the parameters: they are cast once per micro-batch, not at every operation,
    without which bf16 would not be faster on a CPU. Gradients are accumulated in float32. fp16 scales the loss.
    In several ranks the model is wrapped as `parallel` says (see `train.parallel`).
    """

    def __init__(self, model: Model, precision: str, *, compiled: bool = False, parallel: str = "ddp") -> None:
        self.model, dtype = model.train(), DTYPES[precision]
        self.device = model.output.weight.device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self._losses: nn.Module = ModelWithLoss(model, compiled=compiled)
        distributed = group.is_distributed()
        if dtype != torch.float32 and not (distributed and parallel == "fsdp"):  # FSDP casts
            self._losses = Casting(self._losses, dtype)
        if distributed:
            from attnkit.train.parallel import wrap

            self._losses = wrap(self._losses, parallel, dtype, self.device)

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Return a context for one micro-batch; ranks synchronize gradients only for the `last` of an update."""
        if not group.is_distributed():
            return nullcontext()
        from attnkit.train.parallel import communicating

        return communicating(self._losses, last)

    def losses(self, batch: Batch, options: LossOptions) -> Losses:
        """Return the summed losses of a batch, which is moved to the model's device."""
        losses: Losses = self._losses(batch.to(self.device), options)
        return losses

    @record_function("attnkit: gradients")
    def backward(self, total: Tensor, divisor: int) -> None:
        """Accumulate the gradient of total / divisor (scaled in fp16)."""
        self.scaler.scale(total / divisor).backward()  # type: ignore[no-untyped-call]
