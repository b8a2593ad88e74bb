"""What README.md tells people to type is run, and its recipe is a recipe."""

import re
import shlex
from pathlib import Path

import pytest
from shell import attnkit_in

from attnkit.recipe import load

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = [
    line.removeprefix("$ ")
    for language, block in BLOCKS
    if language != "yaml"
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
OWN = ["data.corpus=null", "data.size=null"]


def prepare(folder: Path) -> None:
    """What the commands expect to find: a recipe, aligned files, a finished run."""
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    for split in ("train", "valid", "test"):
        for side in ("en", "de"):
            lines = "".join(f"{side} number {n} of {split}\n" for n in range(40))
            (folder / f"{split}.{side}").write_text(lines, encoding="utf-8")
    (folder / "input.txt").write_text("the old dog sees the cat .\n", encoding="utf-8")
    done = attnkit_in(folder)("train", "recipe.yaml", "--quiet")
    assert done.returncode == 0, done.stderr
    (folder / "runs" / "quickstart").mkdir()
    for variant in ("scaled-dot", "synthesizer-random", "linear"):
        (folder / "runs" / "quickstart" / variant).symlink_to(folder / "runs" / "recipe" / "base")


def test_the_two_commands_are_one_line_each() -> None:
    text = README.read_text(encoding="utf-8")
    start = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt "
    assert f"\n{start}. && .venv/bin/attnkit train recipes/quickstart.yaml\n" in text
    assert f"\n{start}'.[test]' && .venv/bin/pytest\n" in text


def test_commands_of_the_readme_run(tmp_path: Path) -> None:
    assert len(COMMANDS) >= 2
    prepare(tmp_path)
    for command in COMMANDS:
        before, _, words = command.rpartition("attnkit ")
        text = shlex.split(before)[1] + "\n" if before else ""
        extra = OWN if words.startswith("train") and "data.train" in words else []
        out = ["--out", "own"] if words.startswith("train") else []
        done = attnkit_in(tmp_path)(*shlex.split(words), *extra, *out, stdin=text)
        assert done.returncode == 0, (command, done.stderr)
        assert done.stdout


def test_the_recipe_of_the_readme_is_a_recipe(tmp_path: Path) -> None:
    (block,) = [block for language, block in BLOCKS if language == "yaml"]
    (tmp_path / "shown.yaml").write_text(block, encoding="utf-8")
    assert set(load(tmp_path / "shown.yaml").variants) == {"vanilla", "linear", "random"}


def test_files_that_the_readme_names_are_there() -> None:
    text = README.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (README.parent / name).exists(), name


@pytest.mark.parametrize("word", ["@@", "TODO"])
def test_nothing_is_left_to_fill_in(word: str) -> None:
    assert word not in README.read_text(encoding="utf-8")
