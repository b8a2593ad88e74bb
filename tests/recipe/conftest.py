"""Fixture that runs every test of recipes in an empty folder, so that messages contain short paths."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _empty_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
