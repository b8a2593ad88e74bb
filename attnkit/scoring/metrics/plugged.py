"""Metrics of plug-ins: a function of a file gives one number for each line."""

import hashlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnkit.errors import UsageError
from attnkit.recipe.metric_plugins import FUNCTION, metric_files
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics.base import References, Score

TEXTS = ("outputs", "references", "sources")
"""Parameters that the function may have; others need defaults."""


def check(names: Sequence[str], eval: EvalConfig) -> None:
    """Import the files.  Raises UsageError where one fails."""
    for name in names:
        _function(metric_files()[name])


def scores(
    names: Sequence[str],
    hypotheses: Sequence[str],
    references: References,
    eval: EvalConfig,
    sources: Sequence[str] | None = None,
) -> dict[str, Score]:
    """The means over the lines.

    Raises UsageError: a function fails, or does not give one finite number a line.
    """
    texts = {"outputs": [*hypotheses], "references": [[*line] for line in references]}
    out = {}
    for name in names:
        path = metric_files()[name]
        function = _function(path)
        given: dict[str, Any] = {**texts, "sources": None if sources is None else [*sources]}
        parameters = inspect.signature(function).parameters
        if "sources" in parameters and sources is None and _required(parameters["sources"]):
            raise UsageError(f"{path}: {name} reads source texts, which are not known here")
        values = _called(path, function, {key: given[key] for key in TEXTS if key in parameters})
        if len(values) != len(hypotheses) or not all(map(math.isfinite, values)):
            raise UsageError(
                f"{path}: {FUNCTION} must return one finite number for each of "
                f"{len(hypotheses):,} lines, not {len(values):,} numbers"
            )
        statistics = np.array([[value, 1.0] for value in values])
        out[name] = Score.of(name, statistics, _signature(path))
    return out


def current(score: Score) -> bool:
    """Whether a stored score is by the plug-in as it is now; True of other metrics."""
    path = metric_files().get(score.metric)
    return path is None or score.signature == _signature(path)


def _signature(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return f"file:{path.name}|sha256:{digest}"


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty


def _function(path: Path) -> Callable[..., Any]:
    """The function of a file, which is imported once."""
    name = f"attnkit_metric_{path.stem}"
    if name not in sys.modules or sys.modules[name].__file__ != str(path):
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        _called(path, spec.loader.exec_module, {"module": module})
        sys.modules[name] = module
    function: Callable[..., Any] = getattr(sys.modules[name], FUNCTION)
    return function


def _called(path: Path, function: Callable[..., Any], options: dict[str, Any]) -> list[float]:
    """What a function of a file returns; its errors as UsageError with their line."""
    try:
        found = function(**options)
        return [] if found is None else [float(value) for value in found]
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = ([frame.lineno for frame in frames if frame.filename == str(path)] or [1])[-1]
        raise UsageError(f"{path}:{line}: {type(error).__name__}: {error}") from error
