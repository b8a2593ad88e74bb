"""What SVG drawings share.  They are parts of a page or files of their own.

Colours are attributes and no styles, so that a strict content security policy allows them; text has
the colour of what is around.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rich.cells import cell_len

from attnkit.show.html_document import escaped

NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'
FONT = "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
PER_CHARACTER = 0.6
"""Width of a character as a share of the font size, about; drawings leave that much room."""


class Drawing(NamedTuple):
    """A drawing: its size in pixels, what it shows in words, and its elements."""

    width: float
    height: float
    title: str
    elements: tuple[str, ...]

    def svg(self, *, file: bool = False) -> str:
        """The drawing; as a file of its own it has a namespace and white paper."""
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
        box = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        label = f'role="img" aria-label="{escaped(self.title)}"'
        paper = '<rect width="100%" height="100%" fill="#fff"/>' if file else ""
        root = f'<svg{NAMESPACE if file else ""} {size} {box} {label} font-family="{FONT}">'
        return f"{root}{paper}{''.join(self.elements)}</svg>"


def text(
    content: str, x: float, y: float, *, size: float = 11, anchor: str = "start", more: str = ""
) -> str:
    """One line of text; `more` are further attributes."""
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}"'
    return f'<text {place} fill="currentColor"{more}>{escaped(content)}</text>'


def width_of(texts: Iterable[str], size: float) -> float:
    """Pixels that the longest text needs, about."""
    return max(map(cell_len, texts), default=0) * size * PER_CHARACTER
