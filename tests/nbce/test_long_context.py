"""What docs/long-context.md tells people to type is run, and its recipe is a recipe."""

import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.called import called
from helpers.questioned import make_run

from attnkit.nbce.answer import BASELINES
from attnkit.nbce.merge import POOLS
from attnkit.recipe import load

PAGE = Path(__file__).parents[2] / "docs" / "long-context.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
(RECIPE,) = [block for language, block in BLOCKS if language == "yaml"]
ELSEWHERE = "Qwen/Qwen2.5-0.5B-Instruct"
SMALLER = {
    "nq-passages": "toy-passages, size: 200", "decoder: 4": "decoder: 1", "8, 16]": "8]",
    "rows: 200": "rows: 3", "max_length: 16": "max_length: 4",
}  # fmt: skip
QUICK = """train: {steps: 2, batch_tokens: 600, valid_every: 0, precision: fp32}
tokenizer: {type: word, size: 300}
"""
TEMPLATE = (
    "{% for m in messages %}user: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands expect to find."""
    made = tmp_path_factory.mktemp("page")
    run = make_run(made)
    run.path.parents[1].rename(made / "runs" / "passages")
    (made / "runs" / "long-context").mkdir()
    (made / "runs" / "passages").rename(made / "runs" / "long-context" / "passages")
    recipe = RECIPE
    for old, new in SMALLER.items():
        assert old in recipe
        recipe = recipe.replace(old, new)
    (made / "questions.yaml").write_text(recipe + QUICK, encoding="utf-8")
    if find_spec("transformers"):
        from helpers.pretrained import saved

        saved(made / ELSEWHERE, "bloom")
        (made / ELSEWHERE / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return made


@pytest.mark.slow
def test_commands_of_the_page_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert len(COMMANDS) > 12
    monkeypatch.chdir(folder)
    for command in COMMANDS:
        if "attnkit " not in command:  # it makes a file
            subprocess.run(["bash", "-ec", command], check=True)
            continue
        before, _, words = command.rpartition("attnkit ")
        piped = Path(shlex.split(before)[1]).read_bytes() if before else b""
        if ELSEWHERE in words and not find_spec("transformers"):
            continue
        writes = words.startswith("nbce") and "--choices" not in words
        short = ["--max-length", "4"] if writes else []
        done = called(capsys, *shlex.split(words), *short, stdin=piped)
        assert done.code == 0, (command, done.err)
        assert done.out, command
    assert (folder / "trace.html").is_file()


def test_the_recipe_of_the_page_is_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "questions.yaml").write_text(RECIPE, encoding="utf-8")
    assert load(tmp_path / "questions.yaml").variants["base"].task == "question-answering"


def test_every_method_has_its_line() -> None:
    for word in (*POOLS, *BASELINES):
        assert f"\n| `{word}` | " in TEXT


def test_what_the_page_links_to_is_there() -> None:
    for name in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (PAGE.parent / name).exists(), name
