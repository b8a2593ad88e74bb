"""One HTML file that needs nothing else: no network, no other file, no style or script but its own.

A content security policy allows the script and the style by their hashes.  Data is JSON that can
end no element; the script shows it as text only.
"""

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

from attnkit.text import safe_text

_INERT = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def document(folder: Path, title: str, data: dict[str, Any]) -> bytes:
    """`template.html` of a folder with its `page.js`, `page.css`, their hashes and the data."""
    script = (folder / "page.js").read_text(encoding="utf-8")
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
