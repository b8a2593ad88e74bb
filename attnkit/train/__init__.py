"""Training: the loop, its events, losses, optimizer, precision and checkpoints.

Start with `fit.fit` (the training loop), `state.TrainingState` (the contents of a checkpoint) and `checkpoint.save`
(an atomic save). Imports `models`, `data`, `runs`, `scoring` and the packages below them.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class _Function(ModuleType):
    """Module type that makes this package callable: `attnkit.train` is also the function of `attnkit.api`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function(*arguments, **options)

    @property
    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = import_module("attnkit.api").train
        return function

    @property
    def __signature__(self) -> Any:
        return import_module("inspect").signature(self._function)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """Docstring of the function, which notebooks and help() show."""
        return self._function.__doc__


sys.modules[__name__].__class__ = _Function
