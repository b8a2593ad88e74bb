"""Tests of the documentation: its commands and examples run, and generated parts are up to date."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import pretrained, question_runs
from helpers.cli import run_cli

from attnkit import __version__
from attnkit.attention import Mask, Shape
from attnkit.cli import main
from attnkit.data import formats
from attnkit.nbce.answer import METHODS
from attnkit.recipe import load, loading, mechanism_registry, shipped, sweep, yaml_nodes
from attnkit.recipe.metrics import METRICS
from attnkit.runs import Run, results
from attnkit.storage import download, files

ROOT = Path(__file__).parents[1]
README, SECURITY, DOCS = ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", SECURITY, *sorted(DOCS.glob("*.md"))]
GUIDES = (*("long-context", "recipes", "comparing", "export", "mechanisms", "metrics", "runs"), "seeing-attention")
BLOCKS = [
    block
    for page in (README, *(DOCS / f"{name}.md" for name in GUIDES))
    for block in re.findall(r"```(\w*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
]
COMMANDS = [
    line.removeprefix("$ ")
    for language, block in BLOCKS
    if not language
    for line in block.split("\n")
    if re.match(r"(\$ )?((echo|cat) .* \| )?attnkit |(\$ )?(echo|printf|cat|sed|mkdir) .* > ", line)
]
(EXAMPLE,) = [block for language, block in BLOCKS if language == "python"]
SHOWN, QUESTIONS = [block for language, block in BLOCKS if language == "yaml" and "corpus:" in block]
OWN_ROWS = "attnkit train recipe.yaml data.train=train.jsonl data.valid=valid.jsonl data.test=test.jsonl"
"""A command for rows whose fields are not named after languages."""
RECIPE = """task: translation
data: {corpus: toy-translation, size: 200, max_length: 64}
tokenizer: {size: 200}
model: {width: 16, layers: 1, heads: 2, ff: 32}
train: {steps: 2, batch_tokens: 500, valid_every: 0, precision: fp32}
search: {method: greedy, max_length: 5}
"""
SMALLER_QUESTIONS = {
    "nq-passages": "toy-passages, size: 200",
    "decoder: 4": "decoder: 1",
    "8, 16]": "8]",
    "rows: 200": "rows: 3",
    "max_length: 16": "max_length: 4",
}
FEWER_UPDATES = """train: {steps: 2, batch_tokens: 600, valid_every: 0, precision: fp32}
tokenizer: {type: word, size: 300}
"""
PRETRAINED = Path("Qwen/Qwen2.5-0.5B-Instruct")
CHAT = (
    "{% for m in messages %}user: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
SMALL = "data.size=200 tokenizer.size=300 model.layers=1"
TINY = (
    "train.steps=2 train.seeds=[1] model.width=8 model.ff=8 tokenizer.size=60 search.max_length=2 eval.bootstrap=0 "
    "--variant linear"
)
# the same folder of runs for all recipes, since train.init names runs of an earlier recipe
TRANSFER = (
    "--variant vanilla --variant random --out runs train.steps=1 train.batch_tokens=500 train.precision=fp32 "
    "train.monitor=loss data.rows=100 data.valid_rows=10 data.max_length=24 tokenizer.size=500 model.width=16 "
    "model.ff=16 eval.bootstrap=10 eval.splits=[valid] search.method=greedy search.max_length=3 --jobs 1"
)


def prepare(folder: Path) -> None:
    """Create the recipes, texts, models and runs that the commands name."""
    runs = folder / "runs"
    small = folder / "small" / "recipe.yaml"
    small.parent.mkdir()
    small.write_text(RECIPE, encoding="utf-8")
    (folder / "recipe.yaml").write_text(SHOWN, encoding="utf-8")
    (folder / "my_cosine.py").write_text(EXAMPLE, encoding="utf-8")
    for split in ("train", "valid", "test"):
        for side in ("en", "de"):
            lines = "".join(f"{side} number {n} of {split}\n" for n in range(40))
            (folder / f"{split}.{side}").write_text(lines, encoding="utf-8")
        rows = [json.dumps({"source": f"a {n}", "target": f"b {n}"}) + "\n" for n in range(40)]
        (folder / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    for name in ("input", "output", "reference"):
        (folder / f"{name}.txt").write_text("the old dog sees the cat .\n", encoding="utf-8")
    assert main(["train", str(small), "--quiet", "--out", str(runs)]) == 0
    pretrained.save_pretrained(folder / "language-model", "llama")
    (folder / "corpus.txt").write_text("A small river runs behind the mill. " * 40, "utf-8")
    pretrained.save_pretrained(folder / PRETRAINED, "bloom")
    (folder / PRETRAINED / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    questions = QUESTIONS
    for old, new in SMALLER_QUESTIONS.items():
        assert old in questions
        questions = questions.replace(old, new)
    (folder / "questions.yaml").write_text(questions + FEWER_UPDATES, encoding="utf-8")
    passages = question_runs.make_run(folder / "questions").path.parent
    (runs / "long-context" / "passages").mkdir(parents=True)
    (runs / "long-context" / "passages" / "base").symlink_to(passages)
    for variant in ("scaled-dot", "linear", "random+vanilla"):
        copied = runs / "quickstart" / variant
        shutil.copytree(runs / "recipe" / "base", copied)
        Run(copied / "seed-1").update(recipe="quickstart", variant=variant)
    (runs / "translation" / "multi30k").mkdir(parents=True)
    (runs / "translation" / "multi30k" / "vanilla").symlink_to(runs / "recipe" / "base")


def smaller(words: str, number: int) -> str:
    """Return further arguments that make a command fast; a training gets its own folder of runs, own{number}."""
    extra = ""
    if "transfer/" in words:
        extra = TRANSFER if words.startswith("train") else ""
    elif words.startswith("nbce") and "--choices" not in words:
        extra = "--max-length 4"
    elif words.startswith("train") and not re.search("--out|questions.yaml", words):
        extra = f"--out own{number} {TINY if 'recipe.yaml' in words else ''}"
    by_command = {
        "bench": "--lengths 16 --repeats 1",
        "train quickstart": f"{SMALL} train.steps=2 train.valid_every=0 search.max_length=3",
        "probe .*runs/": "--rows 30",
        "conv": "--transfer 1 --tune 1",
        "recipe explain": f"{SMALL} --variant linear",
    }
    return " ".join([extra, *(more for pattern, more in by_command.items() if re.match(pattern, words))])


@pytest.mark.slow
def test_commands_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(COMMANDS) >= 12
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for number, command in enumerate([*COMMANDS, OWN_ROWS]):
        if "attnkit " not in command:  # the command creates a file
            subprocess.run(["bash", "-ec", command], check=True, cwd=tmp_path)
            continue
        before, _, words = command.rpartition("attnkit ")
        if "transfer/" in words and "ATTNKIT_DATA" not in os.environ:
            continue
        stdin = shlex.split(before)[1] + "\n" if before else ""
        stdin = Path(stdin.strip()).read_text(encoding="utf-8") if before[:3] == "cat" else stdin
        words = words.replace("--layer 1 --head 2", "--layer 0 --head 1")  # the small model has one layer
        with monkeypatch.context() as patch:
            patch.setattr(mechanism_registry, "_plugged", {})
            done = run_cli(capsys, *shlex.split(words), *smaller(words, number).split(), stdin=stdin)
        assert done.code == 0, (command, done.err)
        assert done.out or "wrote" in done.err or "removed" in done.err


def test_recipes_of_the_documentation_load(tmp_path: Path) -> None:
    """The recipe of the README is joined to the published scores that docs/comparing.md adds to such a recipe."""
    (published,) = [block for _, block in BLOCKS if block.startswith("published:")]
    (tmp_path / "shown.yaml").write_text(SHOWN + published, encoding="utf-8")
    (tmp_path / "questions.yaml").write_text(QUESTIONS, encoding="utf-8")
    assert load(tmp_path / "questions.yaml").variants["base"].task == "question-answering"
    file = load(tmp_path / "shown.yaml")
    assert set(file.variants) == {"vanilla", "linear", "random"}
    assert file.published is not None
    assert set(file.published.scores) == {"vanilla", "random"}


def test_the_example_mechanism_has_15_lines_and_right_weights() -> None:
    assert EXAMPLE.count("\n") == 15
    names: dict[str, Any] = {}
    exec(EXAMPLE, names)
    cosine = names["Cosine"](Shape(heads=1, head_width=2, max_length=4))
    q, k = (torch.tensor([[rows]], dtype=torch.float64) for rows in ([[5, 0]], [[2, 0], [0, 9]]))
    mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
    expected = torch.tensor([[[[10.0, 0.0]]]], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(cosine.weights(q, k, k, mask), expected)


def test_generated_parts_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    reference: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for write in (reference.mechanisms, reference.choosing):
        page = (DOCS / f"{write.__name__}.md").read_text(encoding="utf-8")
        assert write(page) == page, "run: python docs/reference.py"
    keys = (DOCS / "recipe-keys.md").read_text(encoding="utf-8")
    assert reference.recipe_keys() == keys, "run: python docs/reference.py"


def test_every_metric_has_a_definition() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    lines = [line for line in page.split("\n") if re.match(r"\| `[\w-]+` \|.*\|.*\|.*\|", line)]
    rows = [line.strip("| ").split(" | ") for line in lines]
    endings = {"higher": "", "lower": ", lower is better", "neither": ", neither is better"}
    for name, facts in METRICS.items():
        row = next((row for row in rows if row[0] == f"`{name}`"), None)
        assert row, f"docs/metrics.md: add a row for `{name}`"
        title, definition, cut_by, scale = row[1:5]
        assert (title, cut_by.strip("`")) == (facts.title, facts.cut_by)
        assert definition
        assert scale.endswith(endings[facts.better]), name


def test_tasks_name_existing_commands_and_options() -> None:
    """Compares them with the recorded help."""
    golden = ROOT / "tests" / "cli" / "golden"
    tasks = re.findall("`attnkit ([a-z-]+)([^`]*)`", (DOCS / "tasks.md").read_text("utf-8"))
    assert len(tasks) > 20
    for command, rest in tasks:
        pages = [path.read_text("utf-8") for path in golden.glob(f"{command}*.txt")]
        assert pages, command
        for option in re.findall("--[a-z-]+", rest):
            assert any(f"{option} " in page for page in pages), (command, option)


INSTALL = "\npython3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt "


@pytest.mark.parametrize(
    ("page", "entries"),
    [
        (README, [f"{INSTALL}. && .venv/bin/attnkit train recipes/quickstart.yaml --jobs 2\n"]),
        (README, [f"{INSTALL}'.[test]' && .venv/bin/pytest\n"]),
        (ROOT / "CHANGELOG.md", [f"\n## {__version__}\n"]),
        (DOCS / "results.md", [f"| `{name}` |" for name in shipped()]),
        (DOCS / "long-context.md", [f"\n| `{word}` | " for word in METHODS]),
    ],
    ids=["quickstart", "tests", "version", "recipes", "methods of nbce"],
)
def test_a_page_has_all_entries(page: Path, entries: list[str]) -> None:
    text = page.read_text(encoding="utf-8")
    assert [entry for entry in entries if entry not in text] == []


def test_limits_of_the_security_page_are_those_of_the_code() -> None:
    table = SECURITY.read_text(encoding="utf-8").partition("## Limits")[2]
    mib, gib = 1 << 20, 1 << 30
    for entry in (
        f"{yaml_nodes.MAX_BYTES >> 10} KiB, {yaml_nodes.MAX_NODES:,} keys and values, "
        f"{yaml_nodes.MAX_DEPTH} levels, {loading.MAX_VARIANTS} variants "
        f"({sweep.MAX_VARIANTS:,} in a sweep)",
        f"| a line of text | {formats.MAX_LINE_BYTES // mib} MiB |",
        f"{formats.MAX_RATIO} times its size, beyond {formats.FREE // mib} MiB",
        f"| {files.JSON_LIMIT // mib} MiB, scores {results.SCORES_LIMIT // mib} MiB |",
        f"{download.LIMIT // gib} GiB; {download.EXTRACTED_LIMIT // gib} GiB |",
    ):
        assert entry in table, entry


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_exist_and_no_placeholder_is_left(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / name).exists(), name
    assert not re.search("@@|TODO", text)
