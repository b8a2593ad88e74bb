"""What a report is made of, whatever it is written as."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attnkit.show.table import Table


@dataclass(frozen=True)
class Figure:
    """A picture as SVG."""

    name: str
    """Of its file: letters, digits and hyphens."""
    title: str
    svg: bytes
    caption: str = ""


@dataclass(frozen=True)
class Fold:
    """What a reader opens who wants it; paper shows it."""

    title: str
    blocks: "Sequence[Block]"
    open: bool = False


Block = str | Figure | Fold | Table
"""A text is a sentence of its own."""


class Report(NamedTuple):
    """Blocks by the headings of their sections, under a title."""

    title: str
    facts: str
    """What it is about, in a line."""
    sections: dict[str, list[Block]]
    made_by: str
    """The command, and the version of attnkit."""
