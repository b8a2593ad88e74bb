"""Metrics from outside attnkit: what their files say of themselves, read without running them.

A file `comet.py` brings the metric `comet`: a function `score` from lines to one number a line.
The first line of its docstring is the meaning; `title`, `better` ("higher" or "lower"), `range`
and `source` may be set to literals.  It comes by --plugin, or by the entry-point group
`attnkit.metrics` of an installed package (name = metric, value = module).
"""

import ast
import importlib.util
import re
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from attnkit.errors import UsageError
from attnkit.recipe.metrics import INSTALLED, METRICS, MetricFacts

GROUP = "attnkit.metrics"
FAMILY = "plugin_metrics"
"""Module of `attnkit.scoring.metrics` that calls them."""
FUNCTION = "score"
SETTINGS = ("title", "better", "range", "source")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_files: dict[str, Path] = {}


def is_metric(path: Path) -> bool:
    """Whether a Python file has a function `score` of its own, so that it is a metric."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, OSError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == FUNCTION for node in tree.body)


def plug_in_metric(path: Path, name: str | None = None) -> str:
    """Declare the metric of a file for the rest of this process; returns its name.

    Raises UsageError: the name is taken or none, or a setting is no literal.
    """
    name = name or path.stem.replace("_", "-")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"plug-in {path}: the file's name becomes that of the metric, so it must be small ASCII"
            " letters, digits and _, such as my_metric.py"
        )
    if name == "rouge" or (name in METRICS and METRICS[name].family != FAMILY):
        raise UsageError(f"plug-in {path}: {name} is a metric of attnkit; rename the file")
    path = path.resolve()
    if _files.get(name, path) != path:
        raise UsageError(f"plug-in {path}: {name} is plugged in by {_files[name]}; rename one")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"title": name, "range": "", "better": "higher", "source": ""}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id in SETTINGS:
            if not isinstance(node.value, ast.Constant) or not isinstance(node.value.value, str):
                raise UsageError(f"{path}:{node.lineno}: {target.id} must be a literal text")
            found[target.id] = node.value.value
    if found["better"] not in ("higher", "lower"):
        raise UsageError(f"{path}: better must be 'higher' or 'lower', got {found['better']!r}")
    meaning = (ast.get_docstring(tree) or name).partition("\n")[0]
    METRICS[name] = MetricFacts(family=FAMILY, meaning=meaning, needs=str(path), **found)
    _files[name] = path
    return name


def metric_files() -> dict[str, Path]:
    """Metric -> file of what was plugged in."""
    return dict(_files)


@cache
def _installed() -> None:
    """Declare the metrics of installed packages."""
    for entry in entry_points(group=GROUP):
        spec = importlib.util.find_spec(entry.module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            plug_in_metric(Path(spec.origin), entry.name)


INSTALLED.append(_installed)
