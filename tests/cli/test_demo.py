"""Tests of `attnkit demo`, and of the name `demo` in place of a run."""

from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.shell import Command

from attnkit.runs import Run


@pytest.mark.slow
def test_demo_writes_pages_and_suggests_a_command(cli_process: Command, tmp_path: Path) -> None:
    done = cli_process("demo")
    assert (done.returncode, done.stdout) == (0, "Die arme Frau hat die Briefe gestohlen.\n")
    pages = {path.name for path in (tmp_path / "attnkit-demo").iterdir()}
    assert pages == {"maps.html", "comparison.html"}
    assert "attnkit generate demo" in done.stderr


def test_demo_is_a_name_for_other_commands(cli: Cli) -> None:
    assert cli("generate", "demo", stdin="The king laughs.\n").out == "Der König lacht.\n"
    maps = ("visualize-attn", "demo", "The king laughs.")
    shown = cli(*maps, "--from", "Der", "--to", "king").out
    assert shown.startswith("cross attention: weight from Der to king in each head")
    cli("verify", "demo")
    assert "--from needs --to WORD" in cli(*maps, "--from", "king", code=2).error
    scored = cli("eval", "demo", "search.max_length=3", "--format", "csv", "--metrics", "chrf")
    assert "random+vanilla" in scored.out, scored.err


def test_demo_is_a_name_for_runs_plot_and_train(cli: Cli) -> None:
    assert cli("runs", "demo").out.splitlines()[-2].startswith("demo  done   850/850")
    assert cli("runs", "demo", "--format", "csv").out.splitlines()[1].startswith("demo,quickstart")
    assert cli("plot", "demo", code=65).error.endswith(" demo: the demo model has no learning curve")
    words = ("train.init=demo", "train.steps=1", "search.max_length=2", "--quiet")
    cli("train", "quickstart", "--variant", "random+vanilla", *words)
    assert Run.open("runs/quickstart/random+vanilla/seed-1").manifest.init.run == "demo"
    assert "the weights of demo do not fit" in cli("train", "quickstart", *words, code=78).error


def test_unknown_words_give_one_warning(cli: Cli) -> None:
    done = cli("generate", "demo", stdin="A zebra crosses the quantum highway.\n" * 2)
    assert done.err.count("in 2 of 2 lines, at least half of the words, such as 'zebra', are not") == 1
    assert cli("generate", "demo", stdin="The king laughs.\n").err == ""
