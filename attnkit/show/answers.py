"""What several methods answered to one prompt, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnkit.text import safe_text

NARROW = 50  # cells below which an answer stands under its method's name


class MethodAnswer(NamedTuple):
    """The answer of one method."""

    method: str
    answer: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class AnswerList:
    """A rich renderable; long answers are folded, never cut."""

    answers: Sequence[MethodAnswer]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < NARROW:
            for one in self.answers:
                yield Text(one.method, style="bold")
                yield Padding(_body(one), (0, 0, 0, 2))
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, style="bold")
        for one in self.answers:
            grid.add_row(one.method, _body(one))
        yield grid


def _body(one: MethodAnswer) -> Text:
    """The answer, and in lines of their own what is to be known about it."""
    parts = [Text(safe_text(one.answer) or "(nothing)", overflow="fold")]
    parts += [Text(safe_text(note), style="dim", overflow="fold") for note in one.notes]
    return Text("\n", overflow="fold").join(parts)
