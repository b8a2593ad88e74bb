"""The model of a run, for decoding and scoring that ranks share."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.runs.run import Run

if TYPE_CHECKING:
    from attnkit.models import Model


def shared_model(run: Run, device: str, precision: str = "fp32") -> "Model":
    """The trained model, with matrix products in this precision; other ranks can open it too.

    Raises:
        MissingInputError, DataError: as `Run.model`.
        UnavailableError, UsageError: as `lower_precision`.
    """
    import torch

    from attnkit import mechanisms
    from attnkit.memory import keep_freed_memory
    from attnkit.models.precision import lower_precision

    if device == "cpu":
        keep_freed_memory()
    model = run.model(device)
    lower_precision(model, precision)
    place = device.partition(":")[0], precision, torch.get_num_threads()
    model.reopen = partial(_open_again, run.path, *place, *mechanisms.plugged().values())
    return model


def _open_again(path: Path, device: str, precision: str, threads: int, *plugged: Path) -> "Model":
    """The same in another process, which has a device of its own."""
    import torch

    from attnkit import mechanisms
    from attnkit.device import pick_device

    torch.set_num_threads(threads)
    for file in plugged:
        mechanisms.plug_in(file)
    return shared_model(Run.open(path), pick_device(device), precision)
