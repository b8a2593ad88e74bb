"""Training in several processes with PyTorch's DDP and FSDP2 around a model and its loss.

Gradients are summed over ranks, not averaged: the loss is already divided by the number of target tokens of all ranks.
"""

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from attnkit.data.preparation import PreparedData
from attnkit.distributed import group
from attnkit.errors import DataError, RecipeError, UsageError
from attnkit.layers import Block
from attnkit.recipe import Recipe, digest
from attnkit.recipe.capability import ranks_issue
from attnkit.train.batch_stream import BatchStream, score_budget


def wrap(module: nn.Module, strategy: str, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Wrap the module (strategy ddp), or shard it in place (fsdp).

    fsdp shards each Transformer block, and the other parameters together; in 16-bit precision it casts the parameters
    and sums gradients in float32.
    """
    if strategy == "ddp":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # the replacement name is not in every torch version
            # a mechanism may leave some of its parameters unused
            ddp = DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True)
        ddp.register_comm_hook(None, _sum)
        return ddp
    # the warning is about in-place changes of a block's output, which do not happen here
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for part in (*(m for m in module.modules() if isinstance(m, Block)), module):
        sharded = fully_shard(part, mesh=mesh, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)  # a sum over ranks, not a mean
        sharded.set_force_sum_reduction_for_comms(True)
    return module


def _sum(
    _: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """Sum the gradients over ranks (a DDP communication hook; DDP itself would average them)."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed


def communicating(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """Return a context for one micro-batch, with gradient synchronization only for the `last` of an update."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


def full_state_dict(weights: Mapping[str, Tensor], everywhere: bool = True) -> dict[str, Tensor]:
    """Gather sharded tensors in CPU memory; collective.

    All ranks get the result if `everywhere`, otherwise only the main process (an empty dict on other ranks).
    """
    gathered = {}
    for name, tensor in weights.items():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if everywhere or group.is_main_process():
            gathered[name] = full.cpu() if isinstance(tensor, DTensor) else full
    return gathered


def sharded_like(stored: Tensor, live: Tensor) -> Tensor:
    """Shard a stored tensor like the `live` one, if that is sharded."""
    if isinstance(live, DTensor):
        stored = stored.to(live.device)
        return distribute_tensor(stored, live.device_mesh, live.placements, src_data_rank=None)
    return stored


def check_ranks(recipe: Recipe, prepared: PreparedData) -> None:
    """Check on all ranks that they can train together; collective.

    Raises:
        RecipeError: If the recipe does not support this number of ranks.
        UsageError: If there are more ranks than training rows.
        DataError: If ranks have different data, recipes or plans of batches.
    """
    train, ranks = recipe.train, group.world_size()
    if why := ranks_issue(recipe, ranks):
        raise RecipeError(why)
    if ranks > (rows := len(prepared.train)):
        raise UsageError(f"{ranks} processes are too many for {rows} rows of training data")
    budget, seed = score_budget(recipe), train.seeds[0]
    stream = BatchStream(lambda _: prepared.train, train.batch_tokens, seed, budget)
    digests = group.all_gather_object((digest(recipe), prepared.digest, stream.digest()))
    if rank := next((rank for rank, theirs in enumerate(digests) if theirs != digests[0]), 0):
        raise DataError(f"ranks {rank} and 0 have different recipes or data; give all ranks the same files")
