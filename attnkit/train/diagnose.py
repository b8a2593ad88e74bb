"""Error messages for failed updates: values that are not finite, and memory that ran out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from attnkit.data.batch import Batch
from attnkit.errors import DivergedError, MemoryLimitError

ROWS_SHOWN = 8


def first_bad_module(model: nn.Module, batch: Batch, device: torch.device) -> str | None:
    """Return the name of the first module whose output for a batch is not finite, or None."""
    bad, names = list[str](), {module: name for name, module in model.named_modules()}

    def hook(module: nn.Module, inputs: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        leaf = names.get(module) and not list(module.children())
        if leaf and isinstance(first, Tensor) and not bool(first.isfinite().all()):
            bad.append(names[module])

    tensors = batch.to(device)
    with register_module_forward_hook(hook), torch.no_grad():
        model(tensors.source, tensors.input)
    return bad[0] if bad else None


def diverged(
    step: int, quantity: str, batches: Sequence[Batch], model: nn.Module, device: torch.device, saved_step: int | None
) -> DivergedError:
    """Return the error for a loss or gradient (`quantity`) that is not finite at update `step`.

    The message names the training rows, the first module whose output is not finite, otherwise the first parameter
    whose gradient is not finite, and the last checkpoint.
    """
    bad_batch, location = batches[0], "every module's output is finite"
    for name, parameter in model.named_parameters():
        values = parameter if parameter.grad is None else parameter.grad
        if not bool(values.isfinite().all()):
            location = f"first in the gradient of {name}"
            break
    for batch in batches:
        if (module := first_bad_module(model, batch, device)) is not None:
            bad_batch, location = batch, f"first in the output of {module}"
            break
    rows = ", ".join(str(int(row)) for row in bad_batch.rows[:ROWS_SHOWN])
    more = f" and {len(bad_batch.rows) - ROWS_SHOWN} more" if len(bad_batch.rows) > ROWS_SHOWN else ""
    saved = f"step {saved_step} is saved" if saved_step else "nothing is saved yet"
    return DivergedError(
        f"step {step}: {quantity} is not finite ({location}; training rows {rows}{more}); {saved};"
        " try a lower train.lr, a longer train.warmup or train.precision=fp32"
    )


def too_large(step: int, batch: Batch | None, batch_tokens: int, accumulate: int) -> Exception:
    """Return the error for an update that ran out of memory, with settings that need less."""
    shape = "a batch"
    if batch is not None:
        source = "" if batch.source is None else f" x {batch.source.shape[1]} source"
        shape = f"a batch of {len(batch.rows)} rows{source} x {batch.input.shape[1]} target tokens"
    return MemoryLimitError(
        f"step {step}: out of memory on {shape}; try train.batch_tokens={batch_tokens // 2}"
        f" train.accumulate={accumulate * 2} (the same updates in smaller batches)"
    )
