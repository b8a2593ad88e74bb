"""Why a training failed: the first module that is not finite, a batch that was too large."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.data.batch import Batch
from attnkit.errors import DivergedError, MemoryLimitError

ROWS_SHOWN = 8


def first_bad_module(model: nn.Module, run: Callable[[], object]) -> str | None:
    """The name of the first module whose output is not finite while `run` calls the model."""
    bad: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if not bad and isinstance(first, Tensor) and not bool(first.isfinite().all()):
                bad.append(name)

        return hook

    with ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            if name and not list(module.children()):
                handle = module.register_forward_hook(watch(name))
                stack.callback(handle.remove)
        run()
    return bad[0] if bad else None


def diverged(
    step: int,
    what: str,
    batches: list[Batch],
    model: nn.Module,
    run: Callable[[Batch], object],
    last_good: int | None,
) -> DivergedError:
    """The error for a loss or gradient that is not finite at update `step`.

    Names the rows, the first module whose output is not finite or else the first parameter that
    is, and the checkpoint that is still good.
    """
    for batch in batches:

        def again(batch: Batch = batch) -> None:
            run(batch)

        if (module := first_bad_module(model, again)) is not None:
            where, guilty = f"first in the output of {module}", batch
            break
    else:
        guilty = batches[0]
        names = (n for n, p in model.named_parameters() if not bool(_slope(p).isfinite().all()))
        name = next(names, None)
        where = f"first in the gradient of {name}" if name else "every module's output is finite"
    rows = ", ".join(str(int(row)) for row in guilty.rows[:ROWS_SHOWN])
    more = f" and {len(guilty.rows) - ROWS_SHOWN} more" if len(guilty.rows) > ROWS_SHOWN else ""
    kept = f"step {last_good} is saved" if last_good else "nothing is saved yet"
    return DivergedError(
        f"step {step}: {what} is not finite ({where}; training rows {rows}{more}); {kept};"
        " try a lower train.lr, a longer train.warmup or train.precision=fp32"
    )


def _slope(parameter: nn.Parameter) -> Tensor:
    return parameter if parameter.grad is None else parameter.grad


def too_large(step: int, batch: Batch | None, batch_tokens: int, accumulate: int) -> Exception:
    """The error for memory that ran out, with what to change."""
    shape = "a batch"
    if batch is not None:
        source = "" if batch.source is None else f" x {batch.source.shape[1]} source"
        shape = f"a batch of {len(batch.rows)} rows{source} x {batch.input.shape[1]} target tokens"
    return MemoryLimitError(
        f"step {step}: out of memory on {shape}; try train.batch_tokens={batch_tokens // 2}"
        f" train.accumulate={accumulate * 2} (the same update in smaller pieces)"
    )
