"""Common parts of all pictures: matplotlib imported on demand, its settings, fonts, and reproducible bytes."""

import io
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.errors import UnavailableError, UsageError
from attnkit.text import nearest, safe_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
RESOLUTION = 300  # pixels per inch of a PNG, and of the maps inside an SVG or PDF
BASE = "DejaVu Sans"
"""Font shipped with matplotlib, so that pictures in Latin, Greek and Cyrillic script look the same everywhere."""
PREFERRED = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Source Han Sans",
    "Noto Sans",
    "PingFang SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "WenQuanYi Zen Hei",
    "IPAGothic",
    "Arial Unicode MS",
    "FreeSans",
    "Unifont",
)
"""Font families for characters that the base font lacks, best first."""
SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # a token such as $x$ is not a formula
    "svg.fonttype": "none",
    "svg.hashsalt": "attnkit",
    "pdf.fonttype": 42,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
}


class Picture(NamedTuple):
    """The bytes of a picture file, and warnings for its reader."""

    data: bytes
    warnings: tuple[str, ...] = ()  # one line each, such as the font package to install


def require(format: str, option: str = "--save") -> None:
    """Raise UsageError if the format is unknown, UnavailableError if matplotlib is not installed."""
    if format not in FORMATS:
        near = nearest(format, FORMATS)
        hint = f"did you mean {near}? " if near else ""
        raise UsageError(f"picture format {format!r}: {hint}choose from {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise UnavailableError(f"{option} needs matplotlib for {format}: pip install 'attnkit[plot]'")


@contextmanager
def matplotlib_defaults(texts: Iterable[str]) -> Iterator[list[str]]:
    """Replace the user's matplotlib settings by defaults, with fonts that contain the glyphs of the texts.

    Yields warnings about glyphs that no installed font contains.
    """
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # missing glyphs are reported once, with a remedy, below
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from")
        warnings.filterwarnings("ignore", message=r"(?s).*Matplotlib currently does not support")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)  # type: ignore[arg-type]
        families, missing = fonts(texts)
        matplotlib.rcParams["font.family"] = families
        shown = ", ".join(f"U+{ord(c):04X}" for c in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        hint = (
            f"no installed font has {shown}{more}, drawn as boxes: install a font such as Debian's "
            "fonts-noto-cjk or fonts-noto-core (notofonts.github.io)"
        )
        yield [hint] if missing else []


def rendered(figure: "Figure", format: str, title: str) -> bytes:
    """Return the bytes of a file of the figure, cropped to its content; equal figures give equal bytes."""
    varying = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}[format]
    metadata: dict[str, str | None] = {"Title": safe_text(title), varying: None}
    data = io.BytesIO()
    figure.savefig(
        data, format=format, dpi=RESOLUTION, bbox_inches="tight", pad_inches=0.06, facecolor="white", metadata=metadata
    )
    return data.getvalue()


def fonts(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return font families that together contain the glyphs of the texts, and the characters missing in all of them.

    matplotlib draws each character with the first family in its list that contains it.
    """
    from matplotlib import font_manager

    missing = {c for text in texts for c in text if not unicodedata.category(c).startswith(("C", "Z"))}
    installed, families = set(font_manager.get_font_names()), [BASE]
    for family in (BASE, *PREFERRED):
        if family in installed and missing:
            # installed font files may be damaged: unreadable fonts are skipped
            with suppress(OSError, RuntimeError, ValueError):
                charmap = font_manager.get_font(font_manager.findfont(family)).get_charmap()
                covered = {c for c in missing if ord(c) in charmap}
                families += [family] if covered and family != BASE else []
                missing -= covered
    return families, sorted(missing)
