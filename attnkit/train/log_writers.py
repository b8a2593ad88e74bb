"""Log writers for TensorBoard, Weights & Biases and Trackio (optional dependencies)."""

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
Writer = tuple[Callable[[Scalars, int], object], Callable[[], object]]
"""Functions that write the scalars of a step and that close the writer."""


def check_installed(recipe: Recipe) -> None:
    """Raise UnavailableError if a package of `train.log_to` is not installed."""
    for name in recipe.train.log_to:
        if not installed(name):
            raise UnavailableError(
                f"train.log_to: {name} is not installed: pip install 'attnkit[{name}]', or set train.log_to=[]"
            )


def installed(package: str) -> bool:
    """Return whether a package is installed, without importing it; a bare folder of that name does not count."""
    try:
        spec = find_spec(package)
    except ValueError:  # imported without a specification
        return False
    return spec is not None and spec.origin is not None


class LogWriters:
    """The writers of `train.log_to`, open for a training that resumes after `step`.

    Raises UnavailableError if a writer cannot be opened.
    """

    def __init__(self, run: Run, recipe: Recipe, step: int | None) -> None:
        self._writers: list[Writer] = []
        for name in recipe.train.log_to:
            try:
                self._writers.append(OPENERS[name](run, recipe, step))
            except Exception as error:  # third-party libraries may raise anything
                text = " ".join(f"{type(error).__name__}: {error}".split())
                raise UnavailableError(f"train.log_to: {name} cannot be used: {text}") from error

    def add(self, group: str, record: Mapping[str, Any]) -> None:
        """Write the numbers of one log record under the prefix `group` (train or valid)."""
        scalars = {
            f"{group}/{key}": value
            for key, value in record.items()
            if key != "step" and isinstance(value, int | float)
        }
        for write, _ in self._writers:
            write(scalars, record["step"])

    def close(self) -> None:
        for _, close in self._writers:
            close()


def _tensorboard(run: Run, recipe: Recipe, step: int | None) -> Writer:
    from torch.utils.tensorboard import SummaryWriter

    folder = run.path / TENSORBOARD
    # hide what a stopped training logged after its last checkpoint
    writer = SummaryWriter(str(folder), purge_step=(step or 0) + 1 if folder.exists() else None)

    def write(scalars: Scalars, step: int) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)

    return write, writer.close


def _session(package: str, run: Run, recipe: Recipe, _: int | None) -> Writer:
    """Open a run of wandb, or of trackio, which has the same functions."""
    library: Any = import_module(package)
    if run.manifest.log_id is None:
        run.update(log_id=secrets.token_hex(4))
    name, log_id = f"{run.variant} seed {run.seed}", run.manifest.log_id
    if package == "wandb":
        options = {
            "name": name,
            "id": log_id,
            "dir": str(run.path),
            "mode": os.environ.get("WANDB_MODE", "offline"),
            "settings": library.Settings(console="off", silent=True),
        }
    else:  # trackio resumes a run by its name
        options = {"name": f"{name} {log_id}", "embed": False, "auto_log_cpu": False}
    config = recipe.model_dump(mode="json")
    with redirect_stdout(StringIO()):
        # one project per recipe, one group per variant
        session = library.init(
            project=run.name.replace("/", "-"), group=run.variant, config=config, resume="allow", **options
        )

    def finish() -> None:
        with redirect_stdout(StringIO()):
            library.finish()

    return session.log, finish


OPENERS: dict[str, Callable[[Run, Recipe, int | None], Writer]] = {
    "tensorboard": _tensorboard,
    "wandb": partial(_session, "wandb"),
    "trackio": partial(_session, "trackio"),
}
