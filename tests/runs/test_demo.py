"""Tests of the copy of the demo run in the cache."""

from pathlib import Path

import pytest

from attnkit.cli import main
from attnkit.runs import Run, demo
from attnkit.runs.json_files import StoredSplit
from attnkit.storage.files import sha256_file


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))


def test_messages_contain_the_name_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nbce", "demo", "--context", __file__, "--prompt", "x", "--pool", "window"]) == 2
    assert "method window does not work with demo: an encoder-decoder" in capsys.readouterr().err
    assert main(["verify", "demo"]) == 0
    assert "\ndemo " in capsys.readouterr().out


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", sorted(path.name for path in demo.SHIPPED.iterdir()))
def test_damaged_copy_is_restored(name: str) -> None:
    file = demo.located("demo") / name
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-9] + bytes(9)):
        file.write_bytes(damaged)
        assert demo.located("demo") / name == file
        assert sha256_file(file) == sha256_file(demo.SHIPPED / name)


@pytest.mark.usefixtures("cache")
def test_copy_with_scores_is_kept() -> None:
    Run.open("demo").write_scores("valid", ["a"], StoredSplit(sentences=1))
    assert Run.open("demo").scores() == {"valid": StoredSplit(sentences=1)}
