"""TensorBoard events beside metrics.jsonl, by the extra `tensorboard`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnkit.errors import UnavailableError


class Tensorboard:
    """Scalars in the folder `tensorboard` of a run."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UnavailableError(
                "train.tensorboard needs the package tensorboard: pip install"
                " 'attnkit[tensorboard]', or set train.tensorboard=false"
            ) from error
        self._writer = SummaryWriter(str(run / "tensorboard"))

    def add(self, group: str, record: Mapping[str, Any]) -> None:
        """The numbers of one log record, under train/ or valid/."""
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{group}/{name}", value, record["step"])

    def close(self) -> None:
        self._writer.close()
