"""Tests of `attnkit plot`: charts on the terminal and pictures in files."""

import re
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.logged import make_logged
from helpers.shell import Command


@pytest.fixture(autouse=True)
def runs(tmp_path: Path) -> None:
    """Two variants below runs/toy, one of them unfinished."""
    make_logged(tmp_path / "runs", losses=(4, 3, 2, 1), scores={"bleu": 20.0})
    make_logged(tmp_path / "runs", "other", losses=(5, 4), finished=False)


@pytest.mark.parametrize("width", ["60", "80", "160"])
def test_charts_fit_the_terminal(width: str, cli_process: Command) -> None:
    done = cli_process("plot", "runs/toy", COLUMNS=width, LC_ALL="C.UTF-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= int(width)
    for words in ("training loss", "validation loss", "a base 1", "b other 4"):
        assert words in done.stdout


def test_output_to_a_pipe_has_no_color(cli_process: Command) -> None:
    done = cli_process("plot", "runs", "--y", "score,learning-rate", "--x", "time", LC_ALL="C")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stderr == "attnkit: warning: other: no BLEU on test yet\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["p.svg", "p.PNG", "p.pdf"])
def test_picture_is_saved(name: str, cli: Cli) -> None:
    assert cli("plot", "runs", "--save", name) == (0, "", f"wrote {name}\n")
    assert Path(name).stat().st_size > 1000


def test_picture_has_the_given_size(cli: Cli) -> None:
    cli("plot", "runs", "--save", "p.svg", "--size", "3.3x2.4", "--font-size", "7")
    found = re.search(r'width="([\d.]+)pt"', Path("p.svg").read_text())
    assert found
    assert float(found[1]) == pytest.approx(3.3 * 72, rel=0.06)


def test_picture_without_matplotlib_names_the_extra(cli_process: Command, tmp_path: Path) -> None:
    hidden = "import importlib.util as u; f = u.find_spec\n"
    hidden += "u.find_spec = lambda name, *a: None if name == 'matplotlib' else f(name, *a)\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    path = f"{tmp_path}:{Path(__file__).parents[2]}"
    done = cli_process("plot", "runs", "--save", "p.svg", PYTHONPATH=path)
    assert done.returncode == 69
    assert "pip install 'attnkit[plot]'" in done.stderr
    assert cli_process("plot", "runs", PYTHONPATH=path).returncode == 0
