"""`attnkit plot` as people type it."""

import re
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.logged import make_logged
from helpers.shell import Command


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two variants, one of them unfinished."""
    make_logged(tmp_path / "runs", losses=(4, 3, 2, 1), scores={"bleu": 20.0})
    make_logged(tmp_path / "runs", "other", losses=(5, 4), finished=False)
    return tmp_path / "runs"


@pytest.mark.parametrize("width", ["60", "80", "160"])
def test_charts_fit_the_terminal(width: str, runs: Path, command: Command) -> None:
    done = command("plot", "runs/toy", COLUMNS=width, LC_ALL="C.UTF-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= int(width)
    for words in ("training loss", "validation loss", "a base 1", "b other 4"):
        assert words in done.stdout


def test_a_pipe_gets_no_colour(runs: Path, command: Command) -> None:
    done = command("plot", "runs", "--y", "score,learning-rate", "--x", "time", LC_ALL="C")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stderr == "attnkit: warning: other: no BLEU on test yet\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["p.svg", "p.PNG", "p.pdf"])
def test_a_picture_is_saved(name: str, runs: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli("plot", "runs", "--save", name)
    assert (done.code, done.out, done.err) == (0, "", f"wrote {name}\n")
    assert (tmp_path / name).stat().st_size > 1000


def test_a_picture_has_the_size_that_is_asked_for(runs: Path, cli: Cli, tmp_path: Path) -> None:
    words = ("plot", "runs", "--save", "p.svg", "--size", "3.3x2.4", "--font-size", "7")
    assert cli(*words).code == 0
    width = float(re.search(r'width="([\d.]+)pt"', (tmp_path / "p.svg").read_text())[1])  # type: ignore[index]
    assert width == pytest.approx(3.3 * 72, rel=0.06)


def test_without_matplotlib_a_picture_is_refused_with_the_extra(runs: Path, command: Command, tmp_path: Path) -> None:
    hidden = "import importlib.util as u; f = u.find_spec\n"
    hidden += "u.find_spec = lambda name, *a: None if name == 'matplotlib' else f(name, *a)\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    source = Path(__file__).parents[2]
    done = command("plot", "runs", "--save", "p.svg", PYTHONPATH=f"{tmp_path}:{source}")
    assert done.returncode == 69
    assert "pip install 'attnkit[plot]'" in done.stderr
    assert command("plot", "runs", PYTHONPATH=f"{tmp_path}:{source}").returncode == 0
