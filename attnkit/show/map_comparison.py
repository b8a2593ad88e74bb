"""Maps of one text through several models side by side, and how they differ."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from attnkit.analysis.maps import Capture, Kind
from attnkit.show.attention_matrix import AttentionMatrix, axes_difference, maps_of, matrix_of
from attnkit.show.colour import Palette
from attnkit.show.colour_scale import Scale, limits
from attnkit.show.heatmap import Heatmap, layout, text
from attnkit.show.token_labels import labels_of

_GAP = 3
_NARROWEST = 36  # cells in which a title and a colour bar still read well


_ComparedMap = tuple[list[Text], Heatmap | None]  # a heading with its map, if any


class MapComparison:
    """A rich renderable of maps of one kind of several captures: the mean over layers and heads.

    Each with its model and output, weights with one colour scale; then the difference of every
    other one to the first where their tokens are the same, or else a sentence why there is none.
    They stand side by side where all of them fit as squares, else below each other.
    """

    def __init__(
        self, captures: Sequence[Capture], kind: Kind, *, scale: Scale = "linear",
        palette: Palette = "cividis", plain: bool = False,
    ) -> None:  # fmt: skip
        """The first capture is what the others are compared with.

        Raises:
            UsageError: a capture has no maps of this kind.
        """
        self.captures, self.plain = captures, plain
        self.matrices = [matrix_of(maps_of(capture, kind)) for capture in captures]
        self.heatmap = partial(Heatmap, scale=scale, palette=palette, plain=plain)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ascii_only = options.ascii_only
        bounds = limits([one.weights for one in self.matrices])
        parts: list[_ComparedMap] = []
        for capture, one in zip(self.captures, self.matrices, strict=True):
            heading = [self._bold(capture.model, ascii_only), self._bold(one.title, ascii_only)]
            if capture.output:
                output = f"output ({capture.how}): {capture.output}"
                heading.insert(1, text(output, "", ascii_only))
            parts.append((heading, self.heatmap(replace(one, title=""), bounds=bounds)))
        parts += sorted(self._differences(ascii_only), key=lambda part: part[1] is None)
        drawn = sum(heatmap is not None for _, heatmap in parts)
        for columns in dict.fromkeys((drawn, len(self.captures))):
            share = (options.max_width - _GAP * (columns - 1)) // columns
            if (
                columns > 1
                and not self.plain
                and all(_fits(one, share, ascii_only) for one in self.matrices)
            ):
                grid = Table.grid(padding=(0, _GAP, 0, 0))
                for _ in range(columns):
                    grid.add_column(width=share)
                grid.add_row(*(Group(*heading) for heading, _ in parts[:columns]))
                grid.add_row(*(heatmap or "" for _, heatmap in parts[:columns]))
                yield grid
                parts = parts[columns:]
                break
        for heading, heatmap in parts:
            yield Group(*heading, *([heatmap] if heatmap else []))

    def _differences(self, ascii_only: bool) -> Iterator["_ComparedMap"]:
        """Each other one minus the first, or why there is none."""
        name, first = self.captures[0].model, self.matrices[0]
        for capture, shown in zip(self.captures[1:], self.matrices[1:], strict=True):
            if reason := axes_difference(first, shown):
                note = f"no difference of {capture.model} and {name}: {reason}"
                yield [text(note, "", ascii_only)], None
            else:
                heading = self._bold(f"{capture.model} minus {name}", ascii_only)
                yield [heading], self.heatmap(replace(shown.minus(first), title=""))

    def _bold(self, content: str, ascii_only: bool) -> Text:
        return text(content, "" if self.plain else "bold", ascii_only)


def _fits(shown: AttentionMatrix, width: int, ascii_only: bool) -> bool:
    """Whether the map is drawn as squares in so many cells."""
    sizes = shown.weights.shape
    if width < _NARROWEST or 0 in sizes:
        return False
    label = max(map(cell_len, labels_of(shown.queries, ascii_only)))
    shape = layout((sizes[0], sizes[1]), label, width, True)
    return shape.cell == 2 and shape.block == sizes[1]
