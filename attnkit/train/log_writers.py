"""The log of a training for TensorBoard, Weights & Biases and Trackio, by extras."""

import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from typing import Any

from attnkit.errors import UnavailableError
from attnkit.recipe import Recipe
from attnkit.runs import Run
from attnkit.runs.layout import TENSORBOARD

Scalars = Mapping[str, float]
Opened = tuple[Callable[[Scalars, int], object], Callable[[], object]]
"""What takes the scalars of a step, and what closes it."""


def check_installed(recipe: Recipe) -> None:
    """Refuse a recipe that logs to a package that is not there.  Raises UnavailableError."""
    for name in recipe.train.log_to:
        if not installed(name):
            raise UnavailableError(
                f"train.log_to: {name} is not installed: pip install 'attnkit[{name}]', or set train.log_to=[]"
            )


def installed(package: str) -> bool:
    """Whether a package is installed (a folder of its name does not count); it is not imported."""
    try:
        spec = find_spec(package)
    except ValueError:  # imported without a specification
        return False
    return spec is not None and spec.origin is not None


class LogWriters:
    """What `train.log_to` of a recipe names, open for one training that goes on after `step`.

    Raises UnavailableError: one cannot be opened.
    """

    def __init__(self, run: Run, recipe: Recipe, step: int | None) -> None:
        self._open: list[Opened] = []
        for name in recipe.train.log_to:
            try:
                self._open.append(OPENERS[name](run, recipe, step))
            except Exception as error:  # of a library that is not ours
                text = " ".join(f"{type(error).__name__}: {error}".split())
                raise UnavailableError(f"train.log_to: {name} cannot be used: {text}") from error

    def add(self, group: str, record: Mapping[str, Any]) -> None:
        """The numbers of one log record, under train/ or valid/."""
        scalars = {
            f"{group}/{key}": value
            for key, value in record.items()
            if key != "step" and isinstance(value, int | float)
        }
        for write, _ in self._open:
            write(scalars, record["step"])

    def close(self) -> None:
        for _, close in self._open:
            close()


def _tensorboard(run: Run, recipe: Recipe, step: int | None) -> Opened:
    from torch.utils.tensorboard import SummaryWriter

    folder = run.path / TENSORBOARD
    # what a stopped training logged after its last checkpoint is hidden
    writer = SummaryWriter(str(folder), purge_step=(step or 0) + 1 if folder.exists() else None)

    def write(scalars: Scalars, step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return write, writer.close


def _session(package: str, run: Run, recipe: Recipe, _: int | None) -> Opened:
    """A run of wandb, or of trackio, which has the same functions."""
    library: Any = import_module(package)
    if run.manifest.log_id is None:
        run.update(log_id=secrets.token_hex(4))
    name, identity = f"{run.variant} seed {run.seed}", run.manifest.log_id
    if package == "wandb":
        own = {
            "name": name,
            "id": identity,
            "dir": str(run.path),
            "mode": os.environ.get("WANDB_MODE", "offline"),
            "settings": library.Settings(console="off", silent=True),
        }
    else:  # it finds a run again by its name
        own = {"name": f"{name} {identity}", "embed": False, "auto_log_cpu": False}
    config = recipe.model_dump(mode="json")
    with redirect_stdout(StringIO()):
        # a project for each recipe, in which the seeds of a variant are a group
        session = library.init(
            project=run.name.replace("/", "-"), group=run.variant, config=config, resume="allow", **own
        )

    def finish() -> None:
        with redirect_stdout(StringIO()):
            library.finish()

    return session.log, finish


OPENERS: dict[str, Callable[[Run, Recipe, int | None], Opened]] = {
    "tensorboard": _tensorboard,
    "wandb": partial(_session, "wandb"),
    "trackio": partial(_session, "trackio"),
}
