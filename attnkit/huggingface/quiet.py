"""transformers and huggingface_hub without progress bars, warnings and unwanted network access."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def transformers() -> Any:
    """Import transformers when it is needed."""
    return importlib.import_module("transformers")


def hub() -> Any:
    """Import huggingface_hub when it is needed."""
    return importlib.import_module("huggingface_hub")


@contextmanager
def quiet(*, network: bool = False) -> Iterator[None]:
    """Suppress progress bars, log lines and warnings of transformers, and network access unless `network`.

    bitsandbytes is silenced too, since it logs a line for every matrix product. Offline mode is set here because
    `local_files_only` alone still lets huggingface_hub request a file list from the server.
    """
    constants: Any = importlib.import_module("huggingface_hub.constants")
    bars: Any = importlib.import_module("huggingface_hub.utils")
    logs: Any = importlib.import_module("transformers.utils.logging")
    bars_enabled = logs.is_progress_bar_enabled(), not bars.are_progress_bars_disabled()
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
            if bars_enabled[0]:
                logs.enable_progress_bar()
            if bars_enabled[1]:
                bars.enable_progress_bars()
