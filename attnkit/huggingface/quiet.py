"""Another library without its bars, warnings and calls home: what matters we say ourselves."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def transformers() -> Any:
    """The library, imported when it is needed."""
    return importlib.import_module("transformers")


def hub() -> Any:
    """The library of the model hub."""
    return importlib.import_module("huggingface_hub")


@contextmanager
def quiet(*, network: bool = False) -> Iterator[None]:
    """No bars, log lines or warnings of transformers inside, and no network unless it is wanted.

    bitsandbytes, which it quantises with, has a line for every product: silent as well.

    Offline mode is set here because `local_files_only` alone still lets the hub's library ask its server for a list.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants")
    bars: Any = importlib.import_module("huggingface_hub.utils")
    logs: Any = importlib.import_module("transformers.utils.logging")
    shown = logs.is_progress_bar_enabled(), not bars.are_progress_bars_disabled()
    names = ("transformers", "huggingface_hub", "bitsandbytes")
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    offline = constants.HF_HUB_OFFLINE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            constants.HF_HUB_OFFLINE = offline or not network
            for logger in levels:
                logger.setLevel(logging.CRITICAL)
            logs.disable_progress_bar()
            bars.disable_progress_bars()
            yield
        finally:
            constants.HF_HUB_OFFLINE = offline
            for logger, level in levels.items():
                logger.setLevel(level)
            if shown[0]:
                logs.enable_progress_bar()
            if shown[1]:
                bars.enable_progress_bars()
