"""Training: the loop, its events, losses, optimiser, arithmetic and checkpoints.

Start with `fit.fit` (a job becomes events; it prints nothing), `state.TrainingState` (all that a
checkpoint has to hold) and `checkpoint.save` (a folder that is whole or absent). Imports
`models`, `data`, `runs`, `scoring` and what is below them.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class _Function(ModuleType):
    """This package can be called: `attnkit.train` is the function of `attnkit.api` as well."""

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
        """What notebooks and help() show: the function's."""
        return self._function.__doc__


sys.modules[__name__].__class__ = _Function
