"""`attnkit align`: sentence pairs in, links out; scores; and what it refuses."""

import json
from functools import partial
from pathlib import Path

import pytest
from helpers.cli import Cli

from attnkit.runs import Run

SOURCE = "one red dog\n\na dog and a cat\n"
TARGET = "ein roter hund\n\nein hund und eine katze\n"
GOLD = "0-0 1-1 2-2\n\n0-0 1-1 2-2 3?3 4-4\n"


@pytest.fixture
def align(run: Run, cli: Cli) -> Cli:
    """`attnkit align RUN` in a folder with the files a.en, a.de and a.gold."""
    for name, text in (("en", SOURCE), ("de", TARGET), ("gold", GOLD)):
        Path(f"a.{name}").write_text(text, encoding="utf-8")
    return partial(cli, "align", str(run.path))


FILES = ("a.en", "a.de")
SCORED = (*FILES, "--gold", "a.gold")


def test_each_pair_is_a_line_of_links(align: Cli) -> None:
    done = align(*FILES)
    first, empty, last, end = done.out.split("\n")
    assert (done.code, empty, end) == (0, "", "")
    assert sorted(link.split("-")[1] for link in last.split()) == list("01234")
    assert len(first.split()) == 3
    assert done.err == ("layer 0, mean of heads, output; --gold FILE scores all heads\n")


def test_standard_input_and_an_output_file_say_the_same(align: Cli) -> None:
    expected = align(*FILES, "--layer", "0", "--head", "1").out
    pairs = zip(SOURCE.splitlines(), TARGET.splitlines(), strict=True)
    text = "".join(f"{left} ||| {right}\n" if left else "\n" for left, right in pairs)
    words = ("--layer", "0", "--head", "1", "--output", "links.txt")
    assert align(*words, stdin=text)[:2] == (0, "")
    assert Path("links.txt").read_text() == expected


def test_lines_longer_than_in_training_are_told(align: Cli, run: Run) -> None:
    longest = run.recipe.data.max_length
    lines = ["a dog ||| ein hund", f"a dog ||| {'hund ' * 100}", f"{'dog ' * 90} ||| ein hund"]
    done = align(stdin="\n".join([*lines, ""]))
    assert (done.code, done.out.count("\n")) == (0, 3)
    told = [line for line in done.err.splitlines() if "warning" in line]
    assert len(told) == 1
    assert "line 2: a sequence has " in told[0]
    assert told[0].endswith(f" tokens, more than in training ({longest}, data.max_length); 1 more line with notes")
    assert "warning" not in align(*FILES).err


def test_gold_gives_the_scores_of_all_heads(align: Cli) -> None:
    done = align(*SCORED, "--format", "json")
    rows = json.loads(done.out)["rows"]
    assert [(row["layer"], row["head"], row["step"]) for row in rows] == [
        (0, head, step) for head in (0, 1, "mean") for step in ("output", "input")
    ]
    assert all(0 <= row["aer"] <= 100 and row["links"] == 8 for row in rows)
    assert len(json.loads(align(*SCORED, "--step", "input", "--format", "json").out)["rows"]) == 3


def test_links_that_are_their_own_gold_have_no_errors(align: Cli) -> None:
    words = (*FILES, "--layer", "0", "--head", "1", "--step", "input")
    Path("own").write_text(align(*words).out)
    (row,) = json.loads(align(*words, "--gold", "own", "--format", "json").out)["rows"]
    assert (row["precision"], row["recall"], row["aer"]) == (100, 100, 0)
    table = align(*words, "--gold", "own").out
    assert "sentences: 3; gold: 8 sure links, 0 only possible" in table


def test_links_are_written_beside_their_scores(align: Cli) -> None:
    words = ("--layer", "0", "--head", "1", "--step", "input")
    own = align(*FILES, *words).out
    done = align(*SCORED, *words, "--output", "links", "--format", "csv")
    assert done.out.split("\n")[1].startswith("0,1,input,8,")
    assert Path("links").read_text() == own
