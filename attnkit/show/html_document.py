"""One HTML file that needs nothing else: no network, no other file, no style or script but its own.

A content security policy allows the script and the style by their hashes.  Data is JSON that can
end no element; the script shows it as text only.
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
    """`body.html` of a folder in `frame.html`, with its scripts as one, style, hashes and data.

    `frame.html` and `frame.css` are what all pages share; the `styles` come behind, so that they
    win.  Scripts lose their indentation and the lines that are comments: no literal in them may
    have several lines.  `parts` are HTML for further places {{name}} of the body.
    """
    source = "".join(_text(folder / name) for name in scripts)
    script = _MARGINS.sub("", source)
    style = "".join(_text(path) for path in (_FOLDER / "frame.css", *(folder / s for s in styles)))
    filling = {
        **parts,
        "title": html.escape(safe_text(title)),
        "script": script,
        "style": style,
        "script-hash": _hash(script),
        "style-hash": _hash(style),
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_INERT),
    }
    frame = _text(_FOLDER / "frame.html").replace("{{body}}", _text(folder / "body.html"))
    filled = re.sub(r"\{\{([a-z-]+)\}\}", lambda found: filling[found[1]], frame)
    return filled.encode("utf-8")


def escaped(text: str) -> str:
    """Text from anywhere on one line, as part of an element or an attribute."""
    return html.escape(one_line(text))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
