"""The defaults file of the user: options where command line and environment are silent."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.errors import RecipeError

if TYPE_CHECKING:
    from attnkit.recipe.yaml_nodes import Node

KEYS = ("data_dir", "device", "out")
"""Options that the file can set, by the names of their parameters."""
SAME = {"folder": "out"}
"""Parameters that go by another one: the folder that `attnkit runs` lists."""
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def file() -> Path:
    """Where the file is, or would be: below $XDG_CONFIG_HOME, else ~/.config."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path("~/.config").expanduser()
    return folder / "attnkit.yaml"


def read() -> dict[str, str]:
    """What the file sets; nothing where there is none.

    Raises:
        RecipeError: with a line for each mistake, file:line:column first.
    """
    path = file()
    if not os.path.lexists(path):
        return {}
    from attnkit.recipe.issues import Issues
    from attnkit.recipe.values import written
    from attnkit.recipe.yaml_nodes import Mapping, Scalar, compose, read_text
    from attnkit.text import nearest

    root = compose(read_text(path), str(path))
    if root is None or (isinstance(root, Scalar) and root.null):
        return {}
    if not isinstance(root, Mapping):
        raise RecipeError(f"{root.place}: must hold {', '.join(KEYS)}, got {written(root)}")
    issues, found = Issues(), dict[str, str]()
    for key, (place, node) in root.fields.items():
        close = nearest(key, KEYS)
        if key not in KEYS:
            hint = f"did you mean {close}?" if close else f"there are {', '.join(KEYS)}"
            issues.add(place, (key,), f"unknown key; {hint}")
        elif isinstance(node, Scalar) and node.null:
            continue
        elif fault := next(_faults(key, node), None):
            issues.add(node.place, (key,), f"{fault}, got {written(node)}")
        else:
            assert isinstance(node, Scalar)
            found[key] = node.text if key == "device" else os.path.expanduser(node.text)
    issues.stop()
    return found


def _faults(key: str, node: "Node") -> Iterator[str]:
    from attnkit.recipe.yaml_nodes import Scalar

    if not isinstance(node, Scalar):
        yield "must be a single value"
    elif key == "device" and not DEVICE.fullmatch(node.text):
        yield "must be auto, cpu, cuda, cuda:N or mps"
    elif key == "data_dir" and not os.path.isabs(os.path.expanduser(node.text)):
        yield "must be a whole path, such as ~/corpora"
    elif key == "data_dir" and not os.path.isdir(os.path.expanduser(node.text)):
        yield "is not a folder"


def of_options() -> dict[str, str]:
    """The defaults of options, by the names of their parameters; the environment goes before.

    Raises:
        RecipeError: the file has mistakes.
    """
    found = read()
    if os.environ.get("ATTNKIT_DATA"):
        found.pop("data_dir", None)
    return found | {name: found[key] for name, key in SAME.items() if key in found}
