"""Training in several processes: PyTorch's DDP and FSDP2 around a model with its loss.

Gradients are summed over ranks, as over the micro-batches of one process: the loss was divided by
the target tokens of all of them.
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


def wrap(module: nn.Module, how: str, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The module as a part of all ranks' model: `how` is ddp, or fsdp, which changes it in place.

    With fsdp each block of a Transformer is sharded, and the rest together; in 16-bit precision
    parameters are cast, and gradients summed in float32.
    """
    if how == "ddp":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # its newer name is not in every torch
            # a mechanism may leave some of its parameters unused
            ddp = DistributedDataParallel(module, broadcast_buffers=False, find_unused_parameters=True)
        ddp.register_comm_hook(None, _sum)
        return ddp
    # nothing here changes a block's output in place, which this is about
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
    """Gradients of all ranks together; DDP itself would divide them by the number of ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda f: f.value()[0])
    return summed


def communicating(module: nn.Module, last: bool) -> AbstractContextManager[object]:
    """A context for one micro-batch; gradients are sent after the last one of an update only."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    if isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


def full_state_dict(weights: Mapping[str, Tensor], everywhere: bool = True) -> dict[str, Tensor]:
    """The same with sharded tensors gathered in main memory; all ranks call it.

    Unless they are wanted `everywhere`, the main process alone gets them.
    """
    found = {}
    for name, tensor in weights.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if everywhere or group.is_main_process():
            found[name] = whole.cpu() if isinstance(tensor, DTensor) else whole
    return found


def sharded_like(stored: Tensor, live: Tensor) -> Tensor:
    """A stored tensor, sharded as the live one is."""
    if isinstance(live, DTensor):
        stored = stored.to(live.device)
        return distribute_tensor(stored, live.device_mesh, live.placements, src_data_rank=None)
    return stored


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
