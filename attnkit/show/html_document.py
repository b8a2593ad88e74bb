"""A self-contained HTML file: no network, no other files, no styles or scripts but its own.

A content security policy allows the script and the style by their hashes. The data is JSON in which no character can
end its element; the script shows it as text only.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.text import one_line, safe_text

_FOLDER = Path(__file__).parent
_MARGINS = re.compile(r"^(?:\s+|//.*\n)+", re.MULTILINE)
_INERT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def document(
    folder: Path,
    title: str,
    data: dict[str, Any],
    *,
    scripts: Sequence[str] = ("page.js",),
    styles: Sequence[str] = ("page.css",),
    parts: Mapping[str, str] = {},  # noqa: B006
) -> bytes:
    """Return `body.html` of a folder inside `frame.html`, with scripts, styles, their hashes and data.

    All pages share `frame.html` and `frame.css`; the `styles` follow, so that they take precedence. Indentation and
    comment lines are removed from scripts, so literals in scripts must not span lines. `parts` is the HTML of further
    placeholders {{name}} of the body.
    """
    source = "".join(_text(folder / name) for name in scripts)
    script = _MARGINS.sub("", source)
    style = "".join(_text(path) for path in (_FOLDER / "frame.css", *(folder / s for s in styles)))
    values = {
        **parts,
        "title": html.escape(safe_text(title)),
        "script": script,
        "style": style,
        "script-hash": _hash(script),
        "style-hash": _hash(style),
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_INERT),
    }
    frame = _text(_FOLDER / "frame.html").replace("{{body}}", _text(folder / "body.html"))
    page = re.sub(r"\{\{([a-z-]+)\}\}", lambda match: values[match[1]], frame)
    return page.encode("utf-8")


def escaped(text: str) -> str:
    """Return sanitized text on one line, escaped for elements and attributes."""
    return html.escape(one_line(text))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
