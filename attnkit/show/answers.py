"""What several methods answered to one prompt, side by side."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from attnkit.text import safe_text

NARROW = 50
"""Cells below which an answer stands under its method's name."""


class Said(NamedTuple):
    """An answer and where it comes from."""

    method: str
    answer: str
    notes: tuple[str, ...] = ()


class Replies:
    """A rich renderable; long answers are folded, never cut."""

    def __init__(self, said: Sequence[Said]) -> None:
        self.said = said

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        longest = max(cell_len(one.method) for one in self.said)
        margin = 2 if options.max_width < NARROW else longest + 2
        for one in self.said:
            name = Text(one.method, style="bold")
            if margin == 2:
                yield name
                name = Text()
            lines = _body(one).wrap(console, max(1, options.max_width - margin))
            for number, line in enumerate(lines):
                line.rstrip()
                lead = name if number == 0 else Text()
                yield Text.assemble(lead, " " * (margin - lead.cell_len), line)


def _body(one: Said) -> Text:
    """The answer, and in lines of their own what is to be known about it."""
    parts = [Text(safe_text(one.answer) or "(nothing)", overflow="fold")]
    parts += [Text(safe_text(note), style="dim", overflow="fold") for note in one.notes]
    return Text("\n", overflow="fold").join(parts)
