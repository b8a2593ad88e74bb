"""Training in several processes: PyTorch's DDP around a model with its loss.

Gradients are summed over ranks, as over the micro-batches of one process: the loss was divided by
the target tokens of all of them.
"""

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from attnkit.data.preparation import PreparedData
from attnkit.distributed import group
from attnkit.errors import DataError, RecipeError, UsageError
from attnkit.recipe import Recipe, digest
from attnkit.recipe.capability import ranks_issue
from attnkit.train.batch_stream import BatchStream, score_budget


class _Casting(nn.Module):
    """A module that computes with 16-bit copies of its parameters, whose gradients are float32."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, *arguments: Any) -> Any:
        copies = {parameter: parameter.to(self.dtype) for parameter in self.inner.parameters()}
        # torch.func.functional_call does not put back what a module under two names had
        places = [
            (module._parameters, name, parameter)
            for module in self.inner.modules()
            for name, parameter in module._parameters.items() if parameter is not None
        ]  # fmt: skip
        try:
            for table, name, parameter in places:
                table[name] = cast(nn.Parameter, copies[parameter])
            return self.inner(*arguments)
        finally:
            for table, name, parameter in places:
                table[name] = parameter


def wrap(module: nn.Module, dtype: torch.dtype) -> DistributedDataParallel:
    """The module as a part of all ranks' model.

    In 16-bit precision parameters are cast, and gradients summed in float32.
    """
    whole = module if dtype == torch.float32 else _Casting(module, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # its newer name is not in every torch
        # a mechanism may leave some of its parameters unused
        ddp = DistributedDataParallel(whole, broadcast_buffers=False, find_unused_parameters=True)
    ddp.register_comm_hook(None, _sum)
    return ddp


def _sum(
    _: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Gradients of all ranks together; DDP itself would divide them by the number of ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed


def communicating(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """A context for one micro-batch; gradients are sent after the last one of an update only."""
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


def check_ranks(recipe: Recipe, prepared: PreparedData) -> None:
    """Refuse, on all ranks alike, what they cannot train together.

    Raises:
        RecipeError: the recipe is not for so many.
        UsageError: there are more ranks than rows.
        DataError: they have other data, recipes or plans of batches.
    """
    train, ranks = recipe.train, group.world_size()
    if why := ranks_issue(recipe, ranks):
        raise RecipeError(why)
    if ranks > (rows := len(prepared.train)):
        raise UsageError(f"{ranks} processes are too many for {rows} rows of training data")
    budget, seed = score_budget(recipe), train.seeds[0]
    stream = BatchStream(lambda _: prepared.train, train.batch_tokens, seed, budget)
    found = group.all_gather_object((digest(recipe), prepared.digest, stream.digest()))
    if other := next((number for number, one in enumerate(found) if one != found[0]), 0):
        raise DataError(
            f"ranks have different recipes or data: rank {other} and rank 0 do not agree; give all "
            "of them the same files"
        )
