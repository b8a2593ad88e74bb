"""Tests of `attnkit align`: links of sentence pairs, their scores against gold links, and warnings."""

import json
from functools import partial
from pathlib import Path

import pytest
from helpers.cli import Cli

from attnkit.runs import Run

SOURCE = "one red dog\n\na dog and a cat\n"
TARGET = "ein roter hund\n\nein hund und eine katze\n"
GOLD = "0-0 1-1 2-2\n\n0-0 1-1 2-2 3?3 4-4\n"
FILES = ("a.en", "a.de")
SCORED = (*FILES, "--gold", "a.gold")
ONE_HEAD = ("--layer", "0", "--head", "1")


@pytest.fixture
def align(run: Run, cli: Cli) -> Cli:
    """Run `attnkit align RUN` in a folder with the files a.en, a.de and a.gold."""
    for name, text in (("en", SOURCE), ("de", TARGET), ("gold", GOLD)):
        Path(f"a.{name}").write_text(text, encoding="utf-8")
    return partial(cli, "align", str(run.path))


def test_each_pair_gives_one_line_of_links(align: Cli) -> None:
    done = align(*FILES)
    first, empty, last, end = done.out.split("\n")
    assert (empty, end) == ("", "")
    assert sorted(link.split("-")[1] for link in last.split()) == list("01234")
    assert len(first.split()) == 3
    assert done.err == "layer 0, mean of heads, output; --gold FILE scores all heads\n"


def test_standard_input_and_output_file_give_the_same_links(align: Cli) -> None:
    pairs = zip(SOURCE.splitlines(), TARGET.splitlines(), strict=True)
    text = "".join(f"{source} ||| {target}\n" if source else "\n" for source, target in pairs)
    assert align(*ONE_HEAD, "--output", "links.txt", stdin=text).out == ""
    assert Path("links.txt").read_text() == align(*FILES, *ONE_HEAD).out


def test_lines_longer_than_in_training_give_one_warning(align: Cli, run: Run) -> None:
    longest = run.recipe.data.max_length
    done = align(stdin=f"a dog ||| ein hund\na dog ||| {'hund ' * 100}\n{'dog ' * 90} ||| ein hund\n")
    assert done.out.count("\n") == 3
    (warning,) = [line for line in done.err.splitlines() if "warning" in line]
    assert "line 2: a sequence has " in warning
    assert warning.endswith(f" tokens, more than in training ({longest}, data.max_length); 1 more line with notes")
    assert "warning" not in align(*FILES).err


def test_gold_links_score_all_heads(align: Cli) -> None:
    rows = json.loads(align(*SCORED, "--format", "json").out)["rows"]
    assert [(row["layer"], row["head"], row["step"]) for row in rows] == [
        (0, head, step) for head in (0, 1, "mean") for step in ("output", "input")
    ]
    assert all(0 <= row["aer"] <= 100 and row["links"] == 8 for row in rows)
    assert len(json.loads(align(*SCORED, "--step", "input", "--format", "json").out)["rows"]) == 3


def test_links_scored_against_themselves_have_no_errors(align: Cli) -> None:
    words = (*FILES, *ONE_HEAD, "--step", "input")
    Path("own").write_text(align(*words).out)
    (row,) = json.loads(align(*words, "--gold", "own", "--format", "json").out)["rows"]
    assert (row["precision"], row["recall"], row["aer"]) == (100, 100, 0)
    assert "sentences: 3; gold: 8 sure links, 0 only possible" in align(*words, "--gold", "own").out


def test_links_are_written_to_a_file_beside_their_scores(align: Cli) -> None:
    words = (*ONE_HEAD, "--step", "input")
    done = align(*SCORED, *words, "--output", "links", "--format", "csv")
    assert done.out.split("\n")[1].startswith("0,1,input,8,")
    assert Path("links").read_text() == align(*FILES, *words).out
