"""Maps of one text through several models side by side, and how they differ."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnkit.analysis.maps import Capture, Kind
from attnkit.errors import UsageError
from attnkit.show.attention_matrix import NAMES, AttentionMatrix, axes_difference, matrix_of
from attnkit.show.colour import Palette
from attnkit.show.colour_scale import Scale, limits
from attnkit.show.heatmap import Heatmap, layout, text
from attnkit.show.token_labels import labels_of

_GAP = 3
_NARROWEST = 36  # cells in which a title and a colour bar still read well


class MapComparison:
    """A rich renderable of maps of one kind of several captures: the mean over layers and heads.

    Each with its model and output, weights with one colour scale; then the difference of every
    other one to the first where their tokens are the same, or else a sentence why there is none.
    They stand side by side where all of them fit as squares, else below each other.
    """

    def __init__(
        self,
        captures: Sequence[Capture],
        kind: Kind,
        *,
        scale: Scale = "linear",
        palette: Palette = "cividis",
        plain: bool = False,
    ) -> None:
        """
        Args:
            captures: of one text; the first is what the others are compared with.
            kind: which of their maps.
            scale, palette, plain: as in `Heatmap`.

        Raises:
            UsageError: a capture has no maps of this kind.
        """
        for capture in captures:
            if kind not in capture.maps:
                there = ", ".join(capture.maps) or "none"
                raise UsageError(
                    f"--kind {kind}: {capture.model} has no {NAMES[kind]}; it has {there}"
                )
        self.captures = captures
        self.matrices = [matrix_of(capture.maps[kind]) for capture in captures]
        self.scale: Scale = scale
        self.palette: Palette = palette
        self.plain = plain

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        ascii_only = options.ascii_only
        bounds = limits([one.weights for one in self.matrices])
        parts = [
            _ComparedMap(
                tuple(self._heading(capture, one.title, ascii_only)), self._heatmap(one, bounds)
            )
            for capture, one in zip(self.captures, self.matrices, strict=True)
        ]
        parts += sorted(self._differences(ascii_only), key=lambda part: part.body is None)
        drawn = sum(part.body is not None for part in parts)
        for columns in dict.fromkeys((drawn, len(self.captures))):
            share = (options.max_width - _GAP * (columns - 1)) // columns
            if (
                columns > 1
                and not self.plain
                and all(_fits(one, share, ascii_only) for one in self.matrices)
            ):
                yield _beside(parts[:columns], share)
                parts = parts[columns:]
                break
        for part in parts:
            yield Group(*part.head, *([part.body] if part.body else []))

    def _heatmap(self, shown: AttentionMatrix, bounds: tuple[float, float] | None) -> Heatmap:
        """A map whose title stands elsewhere."""
        return Heatmap(
            replace(shown, title=""), scale=self.scale, palette=self.palette, bounds=bounds,
            plain=self.plain,
        )  # fmt: skip

    def _heading(self, capture: Capture, title: str, ascii_only: bool) -> Iterator[Text]:
        """The model, what it wrote, and what is shown."""
        yield self._bold(capture.model, ascii_only)
        if capture.output:
            yield text(f"output ({capture.how}): {capture.output}", "", ascii_only)
        yield self._bold(title, ascii_only)

    def _differences(self, ascii_only: bool) -> Iterator["_ComparedMap"]:
        """Each other one minus the first, or why there is none."""
        name = self.captures[0].model
        for capture, shown in zip(self.captures[1:], self.matrices[1:], strict=True):
            if reason := axes_difference(self.matrices[0], shown):
                note = f"no difference of {capture.model} and {name}: {reason}"
                yield _ComparedMap((text(note, "", ascii_only),))
            else:
                title = self._bold(f"{capture.model} minus {name}", ascii_only)
                difference = shown.minus(self.matrices[0])
                yield _ComparedMap((title,), self._heatmap(difference, None))

    def _bold(self, content: str, ascii_only: bool) -> Text:
        return text(content, "" if self.plain else "bold", ascii_only)


class _ComparedMap(NamedTuple):
    """A heading with its map, if any."""

    head: tuple[Text, ...]
    body: Heatmap | None = None


def _beside(parts: Sequence[_ComparedMap], width: int) -> Table:
    """Maps in columns of this width, their headings above them."""
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for _ in parts:
        grid.add_column(width=width)
    grid.add_row(*(Group(*part.head) for part in parts))
    grid.add_row(*(part.body or "" for part in parts))
    return grid


def _fits(shown: AttentionMatrix, width: int, ascii_only: bool) -> bool:
    """Whether the map is drawn as squares in so many cells."""
    sizes = shown.weights.shape
    if width < _NARROWEST or 0 in sizes:
        return False
    label = max(map(cell_len, labels_of(shown.queries, ascii_only)))
    shape = layout((sizes[0], sizes[1]), label, width, True)
    return shape.cell == 2 and shape.block == sizes[1]
