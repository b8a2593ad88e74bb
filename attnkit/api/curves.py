"""Learning curves shown in a notebook, on a terminal or as an image file."""

from collections.abc import Sequence
from pathlib import Path

from attnkit.api.progress import plain_text
from attnkit.errors import UnavailableError
from attnkit.runs.curves import Curves
from attnkit.show.curves_chart import CurvesChart
from attnkit.show.curves_figure import picture
from attnkit.storage.files import write_output


class DrawnCurves:
    """The plot of `attnkit plot`; `curves` has its numbers."""

    def __init__(self, curves: Sequence[Curves]) -> None:
        self.curves = tuple(curves)

    def save(self, path: str | Path) -> None:
        """Write an image file: .svg, .png or .pdf."""
        write_output(Path(path), picture(self.curves, Path(path).suffix[1:].lower()).data)

    def __str__(self) -> str:
        return plain_text(CurvesChart(list(self.curves)))

    def _repr_svg_(self) -> str | None:
        try:
            return picture(self.curves, "svg").data.decode("utf-8")
        except UnavailableError:  # the notebook falls back to the text
            return None

    __repr__ = __str__
