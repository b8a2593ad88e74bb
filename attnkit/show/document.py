"""One HTML file that needs nothing else: no network, no other file, no style or script but its own.

A content security policy allows the script and the style by their hashes.  Data is JSON that can
end no element; the script shows it as text only.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnkit.text import safe_text

_MARGINS = re.compile(r"^(?:\s+|//.*\n)+", re.MULTILINE)
_INERT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def document(
    folder: Path, title: str, data: dict[str, Any], scripts: Sequence[str] = ("page.js",)
) -> bytes:
    """`template.html` of a folder with its scripts as one, `page.css`, their hashes and the data.

    Scripts lose their indentation and the lines that are comments: no literal in them may have
    several lines.
    """
    source = "".join((folder / name).read_text(encoding="utf-8") for name in scripts)
    script = _MARGINS.sub("", source)
    style = (folder / "page.css").read_text(encoding="utf-8")
    parts = {
        "title": html.escape(safe_text(title)),
        "script": script,
        "style": style,
        "script-hash": _hash(script),
        "style-hash": _hash(style),
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_INERT),
    }
    template = (folder / "template.html").read_text(encoding="utf-8")
    filled = re.sub(r"\{\{([a-z-]+)\}\}", lambda found: parts[found[1]], template)
    return filled.encode("utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
