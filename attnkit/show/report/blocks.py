"""What a report is made of, whatever it is written as."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attnkit.scoring.output_comparison import ComparedLine, ComparedOutputs
from attnkit.show.table import Table


@dataclass(frozen=True)
class Note:
    """A sentence."""

    text: str


@dataclass(frozen=True)
class Marks:
    """What the marks in examples mean."""


class Drawing(NamedTuple):
    """A picture as SVG, and what it shows in words."""

    title: str
    svg: bytes


@dataclass(frozen=True)
class Figure:
    """Drawings that belong together."""

    name: str
    """Of their files: letters, digits and hyphens."""
    drawings: Sequence[Drawing]
    caption: str = ""


@dataclass(frozen=True)
class Examples:
    """Lines of a test set with what two systems made of them."""

    title: str
    comparison: ComparedOutputs
    lines: Sequence[ComparedLine]


@dataclass(frozen=True)
class Fold:
    """What a reader opens who wants it; paper shows it."""

    title: str
    blocks: "Sequence[Block]"
    open: bool = False


Block = Note | Marks | Figure | Examples | Fold | Table


@dataclass(frozen=True)
class ReportSection:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Report:
    """Sections under a title."""

    title: str
    facts: str
    """What it is about, in a line."""
    sections: Sequence[ReportSection]
    made_by: str
    """The command, and the version of attnkit."""
