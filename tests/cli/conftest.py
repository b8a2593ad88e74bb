"""Fixtures of the command line's tests."""

from pathlib import Path

import pytest
from shell import Command, attnkit_in


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """The real command line in a process of its own, in an empty folder."""
    return attnkit_in(tmp_path)
