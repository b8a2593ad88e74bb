"""The defaults file of the user: options where command line and environment are silent."""

import os
import re
from pathlib import Path
from typing import Literal, get_args

from attnkit.text import quoted

Key = Literal["data_dir", "device", "out"]
KEYS: tuple[Key, ...] = get_args(Key)
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

    Raises RecipeError: with the first mistake, file:line:column first.
    """
    path = file()
    if not os.path.lexists(path):
        return {}
    from pydantic import TypeAdapter

    from attnkit.recipe.issues import ValidationIssues, refuse
    from attnkit.recipe.reading import read as read_node
    from attnkit.recipe.yaml_nodes import Mapping, Scalar, compose, read_text

    root = compose(read_text(path), str(path))
    if root is None or (isinstance(root, Scalar) and root.null):
        return {}
    try:
        found = read_node(root, TypeAdapter(dict[Key, str | None]))
    except ValidationIssues as refused:
        issue = next(iter(refused.found))
        refuse(issue.place or root.place, issue.text, issue.key)
    assert isinstance(root, Mapping)
    set_ = {name: text for name, text in found.items() if text is not None}
    for name, text in set_.items():
        if why := _refused(name, text):
            refuse(root.fields[name][1].place, f"{why}, got {quoted(text)}", (name,))
    return {n: text if n == "device" else os.path.expanduser(text) for n, text in set_.items()}


def _refused(name: str, text: str) -> str:
    """Why a default cannot be this text; "" where it can."""
    if name == "device" and not DEVICE.fullmatch(text):
        return "must be auto, cpu, cuda, cuda:N or mps"
    if name == "data_dir" and not os.path.isabs(os.path.expanduser(text)):
        return "must be a whole path, such as ~/corpora"
    if name == "data_dir" and not os.path.isdir(os.path.expanduser(text)):
        return "is not a folder"
    return ""


def of_options() -> dict[str, str]:
    """The defaults of options, by the names of their parameters; the environment goes before.

    Raises RecipeError: the file has mistakes.
    """
    found = read()
    if os.environ.get("ATTNKIT_DATA"):
        found.pop("data_dir", None)
    return found | {name: found[key] for name, key in SAME.items() if key in found}
