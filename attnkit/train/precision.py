"""The arithmetic of training: float32, or 16-bit copies of float32 master weights."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from attnkit.data.batch import Batch, BatchTensors
from attnkit.distributed import group
from attnkit.models import Model
from attnkit.models.precision import DTYPES
from attnkit.train.loss import Losses, LossOptions, token_losses


class ModelWithLoss(nn.Module):
    """A model from ids to summed losses: what is computed in one piece, also in several ranks."""

    def __init__(self, model: Model, *, compiled: bool = False) -> None:
        super().__init__()
        self.model = model
        self._hidden: Callable[..., Tensor] = model.hidden
        if compiled:
            self._hidden = torch.compile(model.hidden, dynamic=True)

    def forward(self, batch: BatchTensors, options: LossOptions) -> Losses:
        """Sums over the tokens to predict."""
        with record_function("attnkit: rest of the model"):
            hidden = self._hidden(batch.source, batch.input)
        with record_function("attnkit: loss"):
            weight = self.model.output.weight
            return token_losses(batch.predicting(hidden), weight, batch.targets, options)


class GradientWorker:
    """Computes gradients for a float32 model.

    In bf16 and fp16 a 16-bit copy computes and the float32 model keeps the master weights: casts
    happen once an update rather than at every operation, which on a CPU decides whether bf16 pays.
    Gradients of micro-batches are summed in float32.  fp16 scales the loss.

    Among ranks the model is wrapped as `parallel` says (see `train.parallel`), which casts anew for
    each micro-batch.
    """

    def __init__(
        self, model: Model, precision: str, *, compiled: bool = False, parallel: str = "ddp"
    ) -> None:
        self.master = model
        dtype = DTYPES[precision]
        self.model, self._pairs = model, None
        if dtype != torch.float32 and not group.is_distributed():
            self.model = copy.deepcopy(model).to(dtype)
            for master, copied in zip(model.modules(), self.model.modules(), strict=True):
                copied._buffers.update(master._buffers)  # shared: what a step counts is saved
            # lists of plain tensors: what torch's foreach functions are typed for
            self._pairs = (list[Tensor](model.parameters()), list[Tensor](self.model.parameters()))
        self.model.train()
        self.device = model.output.weight.device
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self._losses: nn.Module = ModelWithLoss(self.model, compiled=compiled)
        if group.is_distributed():
            from attnkit.train.parallel import wrap

            self._losses = wrap(self._losses, parallel, dtype, self.device)

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """A context for each micro-batch; among ranks, gradients are sent after the last one."""
        if not group.is_distributed():
            return nullcontext()
        from attnkit.train.parallel import communicating

        return communicating(self._losses, last)

    def losses(self, batch: Batch, options: LossOptions) -> Losses:
        """Summed losses of a batch, which is moved to the model's device."""
        found: Losses = self._losses(batch.to(self.device), options)
        return found

    @record_function("attnkit: gradients")
    def backward(self, total: Tensor, divisor: int) -> None:
        """Add the gradient of total / divisor to the masters' (still scaled in fp16)."""
        self.scaler.scale(total / divisor).backward()  # type: ignore[no-untyped-call]
        if self._pairs is None:
            return
        for master, copied in zip(*self._pairs, strict=True):
            if copied.grad is None:
                continue
            gradient = copied.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            copied.grad = None

    def refresh(self) -> None:
        """Copy the masters' new weights to the 16-bit copy, where there is one."""
        if self._pairs is not None:
            with torch.no_grad():
                torch._foreach_copy_(self._pairs[1], self._pairs[0])
