"""What README.md tells people to type is run, and its recipe is a recipe."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import questioned as asked
from helpers.shell import attnkit_in

from attnkit.attention import Mask, Shape
from attnkit.cli import main
from attnkit.recipe import load

README = Path(__file__).parents[1] / "README.md"
README_TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README_TEXT, re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for language, block in BLOCKS
    if not language
    for line in block.split("\n")
    if re.match(r"(\$ )?(echo .* \| )?attnkit ", line)
]
RECIPE = """task: translation
data: {corpus: toy-translation, size: 200, max_length: 64}
tokenizer: {size: 200}
model: {width: 16, layers: 1, heads: 2, ff: 32}
train: {steps: 2, batch_tokens: 500, valid_every: 0, precision: fp32}
search: {method: greedy, max_length: 5}
"""
(EXAMPLE,) = [block for language, block in BLOCKS if language == "python"]
OWN = ["data.corpus=null", "data.size=null"]
QUICK = ["--lengths", "16", "--repeats", "1"]


def prepare(folder: Path) -> None:
    """What the commands expect to find: a recipe, aligned files, a finished run."""
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (folder / "cosine.py").write_text(EXAMPLE, encoding="utf-8")
    for split in ("train", "valid", "test"):
        for side in ("en", "de"):
            lines = "".join(f"{side} number {n} of {split}\n" for n in range(40))
            (folder / f"{split}.{side}").write_text(lines, encoding="utf-8")
    (folder / "input.txt").write_text("the old dog sees the cat .\n", encoding="utf-8")
    done = attnkit_in(folder)("train", "recipe.yaml", "--quiet")
    assert done.returncode == 0, done.stderr
    passages = asked.make_run(folder / "questions").path.parent
    (folder / "runs" / "long-context" / "passages").mkdir(parents=True)
    (folder / "runs" / "long-context" / "passages" / "base").symlink_to(passages)
    text = "Boris Dorn lives in Corvo . Anna Falk lives in Brevik ."
    (folder / "book.txt").write_text(text, encoding="utf-8")
    (folder / "passages.jsonl").write_text(json.dumps({"text": text}) + "\n", encoding="utf-8")
    (folder / "runs" / "quickstart").mkdir()
    for variant in load("quickstart").variants:
        (folder / "runs" / "quickstart" / variant).symlink_to(folder / "runs" / "recipe" / "base")


def test_the_two_commands_are_one_line_each() -> None:
    text = README.read_text(encoding="utf-8")
    start = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt "
    assert f"\n{start}. && .venv/bin/attnkit train recipes/quickstart.yaml\n" in text
    assert f"\n{start}'.[test]' && .venv/bin/pytest\n" in text


def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    assert len(COMMANDS) >= 2
    prepare(tmp_path)
    for number, command in enumerate(COMMANDS):
        before, _, words = command.rpartition("attnkit ")
        text = shlex.split(before)[1] + "\n" if before else ""
        extra = OWN if words.startswith("train") and "data.train" in words else []
        out = ["--out", f"own{number}"] if words.startswith("train") else []
        out += QUICK if words.startswith("bench") else []
        done = attnkit_in(tmp_path)(*shlex.split(words), *extra, *out, stdin=text)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout or "wrote" in done.stderr


def test_the_recipe_of_the_readme_is_a_recipe(tmp_path: Path) -> None:
    (block,) = [block for language, block in BLOCKS if language == "yaml"]
    (tmp_path / "shown.yaml").write_text(block, encoding="utf-8")
    assert set(load(tmp_path / "shown.yaml").variants) == {"vanilla", "linear", "random"}


def test_the_example_has_15_lines_and_is_what_it_says() -> None:
    assert EXAMPLE.count("\n") == 15
    made: dict[str, Any] = {}
    exec(EXAMPLE, made)
    cosine = made["Cosine"](Shape(heads=1, head_width=2, max_length=4))
    q, k = (torch.tensor([[rows]], dtype=torch.float64) for rows in ([[5, 0]], [[2, 0], [0, 9]]))
    mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
    expected = torch.tensor([[[[10.0, 0.0]]]], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(cosine.weights(q, k, k, mask), expected)


def test_the_table_of_mechanisms_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["mechanisms", "--format", "markdown"]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0]
    missing = [line for line in table.split("\n") if line not in README_TEXT.split("\n")]
    assert not missing, "`attnkit mechanisms --format markdown` into README.md"
    assert table in README_TEXT


def test_files_that_the_readme_names_are_there() -> None:
    text = README.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (README.parent / name).exists(), name


@pytest.mark.parametrize("word", ["@@", "TODO"])
def test_nothing_is_left_to_fill_in(word: str) -> None:
    assert word not in README.read_text(encoding="utf-8")
