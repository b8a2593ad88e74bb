"""`attnkit demo`, and the name `demo` where a run is expected."""

from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.shell import Command

from attnkit.runs import Run


@pytest.mark.slow
def test_the_demo_writes_pages_and_says_what_to_try(command: Command, tmp_path: Path) -> None:
    done = command("demo")
    assert (done.returncode, done.stdout) == (0, "Die arme Frau hat die Briefe gestohlen.\n")
    pages = {path.name for path in (tmp_path / "attnkit-demo").iterdir()}
    assert pages == {"maps.html", "comparison.html"}
    assert "attnkit generate demo" in done.stderr


def test_demo_is_a_name_for_other_commands(cli: Cli) -> None:
    assert cli("generate", "demo", stdin="The king laughs.\n").out == "Der König lacht.\n"
    found = cli("visualize-attn", "demo", "The king laughs.", "--from", "Der", "--to", "king")
    assert found.out.startswith("cross attention: weight from Der to king in each head")
    assert cli("verify", "demo").code == 0
    wrong = cli("visualize-attn", "demo", "The king laughs.", "--from", "king")
    assert "--from needs --to WORD" in wrong.error
    scored = cli("eval", "demo", "search.max_length=3", "--format", "csv", "--metrics", "chrf")
    assert "random+vanilla" in scored.out, scored.err


def test_demo_is_a_name_where_runs_are_listed_drawn_and_trained_on(cli: Cli) -> None:
    assert cli("runs", "demo").out.splitlines()[-2].startswith("demo  done   850/850")
    assert cli("runs", "demo", "--format", "csv").out.splitlines()[1].startswith("demo,quickstart")
    refused = cli("plot", "demo").error
    assert refused.endswith(" demo: the demo model has no learning curve")
    words = ("train.init=demo", "train.steps=1", "search.max_length=2", "--quiet")
    done = cli("train", "quickstart", "--variant", "random+vanilla", *words)
    assert done.code == 0, done.err
    assert Run.open("runs/quickstart/random+vanilla/seed-1").manifest.init.run == "demo"
    assert "the weights of demo do not fit" in cli("train", "quickstart", *words).error


def test_a_text_unlike_the_training_is_told_once(cli: Cli) -> None:
    done = cli("generate", "demo", stdin="A zebra crosses the quantum highway.\n" * 2)
    assert done.err.count("in 2 of 2 lines, at least half of the words, such as 'zebra', are not") == 1
    assert cli("generate", "demo", stdin="The king laughs.\n").err == ""
