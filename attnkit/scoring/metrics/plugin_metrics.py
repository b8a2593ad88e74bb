"""Metrics of plug-ins: a function in a file returns one number per line."""

import hashlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from attnkit.errors import UsageError
from attnkit.recipe.metrics import FUNCTION, metric_files
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import References, Score


def check(names: Sequence[str], eval: EvalConfig) -> None:
    """Import the files of plug-ins. Raises UsageError if an import fails."""
    for name in names:
        path = metric_files()[name]
        _imported(path, path.read_bytes())


def scores(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    eval: EvalConfig,
    sources: Sequence[str] | None = None,
) -> dict[str, Score]:
    """Score by the functions of plug-ins, whose parameters are outputs, references, sources, and others with defaults.

    Raises UsageError if a function fails, or does not return one finite number per line.
    """
    out = {}
    for name in names:
        path = metric_files()[name]
        content = path.read_bytes()
        function = getattr(_imported(path, content), FUNCTION)
        arguments: dict[str, Any] = {
            "outputs": [*hypotheses],
            "references": [[*line] for line in references],
            "sources": None if sources is None else [*sources],
        }
        parameters = inspect.signature(function).parameters
        required = {key for key, parameter in parameters.items() if parameter.default is parameter.empty}
        if sources is None and "sources" in required:
            raise UsageError(f"{path}: {name} needs source texts, which are not available here")
        values = _call(path, function, **{key: value for key, value in arguments.items() if key in parameters})
        rule = f"{path}: {FUNCTION} must return one finite number for each of {len(hypotheses):,} lines"
        if len(values) != len(hypotheses):
            raise UsageError(f"{rule}, not {len(values):,} numbers")
        for line, value in enumerate(values, 1):
            if not math.isfinite(value):
                raise UsageError(f"{rule}, not {value} for line {line:,}")
        out[name] = Score.mean(name, values, _signature(path, content))
    return out


def current(score: Score) -> bool:
    """Return whether a stored score was computed by the current file of its plug-in; True for other metrics."""
    path = metric_files().get(score.metric)
    return path is None or score.signature == _signature(path, path.read_bytes())


def _signature(path: Path, content: bytes) -> str:
    return f"file:{path.name}|sha256:{hashlib.sha256(content).hexdigest()[:8]}"


class _Loader(SourceLoader):
    """Loader of the bytes that were hashed: the file may have changed since, and its .pyc may be older."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content = str(path), content

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str) -> bytes:
        return self.content

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        getattr(module, FUNCTION)


@cache
def _imported(path: Path, content: bytes) -> ModuleType:
    """Return the module of a file; it is imported again if its content changes."""
    loader = _Loader(path, content)
    spec = importlib.util.spec_from_loader(f"attnkit_metric_{path.stem}", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    _call(path, loader.exec_module, module=module)
    sys.modules[spec.name] = module
    return module


def _call(path: Path, function: Callable[..., Any], **arguments: Any) -> list[float]:
    """Call a function of a file and return its values; raise its errors as UsageError with file:line."""
    try:
        values = function(**arguments)
        return [] if values is None else [float(value) for value in values]
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = ([frame.lineno for frame in frames if frame.filename == str(path)] or [1])[-1]
        raise UsageError(f"{path}:{line}: {type(error).__name__}: {error}") from error
