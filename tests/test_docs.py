"""What the documentation tells people to type is run, and what is generated is current."""

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
from helpers import pretrained
from helpers import question_runs as asked
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
README, DOCS = ROOT / "README.md", ROOT / "docs"
SECURITY = ROOT / "SECURITY.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", SECURITY, *sorted(DOCS.glob("*.md"))]
BLOCKS = [
    block
    for page in (
        README,
        *(
            DOCS / f"{name}.md"
            for name in (
                "long-context",
                "recipes",
                "comparing",
                "export",
                "mechanisms",
                "metrics",
                "runs",
                "seeing-attention",
            )
        ),
    )
    for block in re.findall(r"```(\w*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
]
COMMANDS = [
    line.removeprefix("$ ")
    for language, block in BLOCKS
    if not language
    for line in block.split("\n")
    if re.match(r"(\$ )?((echo|cat) .* \| )?attnkit |(\$ )?(echo|printf|cat|sed|mkdir) .* > ", line)
]
RECIPE = """task: translation
data: {corpus: toy-translation, size: 200, max_length: 64}
tokenizer: {size: 200}
model: {width: 16, layers: 1, heads: 2, ff: 32}
train: {steps: 2, batch_tokens: 500, valid_every: 0, precision: fp32}
search: {method: greedy, max_length: 5}
"""
(EXAMPLE,) = [block for language, block in BLOCKS if language == "python"]
SHOWN, QUESTIONS = [block for language, block in BLOCKS if language == "yaml" and "corpus:" in block]
OWN = "attnkit train recipe.yaml data.train=train.jsonl data.valid=valid.jsonl data.test=test.jsonl"
"""Rows whose fields are no languages."""
FEWER = {
    "nq-passages": "toy-passages, size: 200",
    "decoder: 4": "decoder: 1",
    "8, 16]": "8]",
    "rows: 200": "rows: 3",
    "max_length: 16": "max_length: 4",
}
FEWER_UPDATES = """train: {steps: 2, batch_tokens: 600, valid_every: 0, precision: fp32}
tokenizer: {type: word, size: 300}
"""
ELSEWHERE = Path("Qwen/Qwen2.5-0.5B-Instruct")
CHAT = (
    "{% for m in messages %}user: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
QUICK = ["--lengths", "16", "--repeats", "1"]
SMALL = ["data.size=200", "tokenizer.size=300", "model.layers=1"]
TINY = [
    "train.steps=2",
    "train.seeds=[1]",
    "model.width=8",
    "model.ff=8",
    "tokenizer.size=60",
    "search.max_length=2",
    "eval.bootstrap=0",
    "--variant",
    "linear",
]
SHORT = [*SMALL, "train.steps=2", "train.valid_every=0", "search.max_length=3"]

TRANSFER = [
    "--variant",
    "vanilla",
    "--variant",
    "random",
    "--out",
    "runs",
    "train.steps=1",
    "train.batch_tokens=500",
    "train.precision=fp32",
    "train.monitor=loss",
    "data.rows=100",
    "data.valid_rows=10",
    "data.max_length=24",
    "tokenizer.size=500",
    "model.width=16",
    "model.ff=16",
    "eval.bootstrap=10",
    "eval.splits=[valid]",
    "search.method=greedy",
    "search.max_length=3",
]
"""On real corpora: `train.init` finds the runs of the recipe before."""


def prepare(folder: Path) -> None:
    """What the commands expect to find: a recipe, aligned files, a finished run."""
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
    assert main(["train", str(small), "--quiet", "--out", str(folder / "runs")]) == 0
    pretrained.random_model("llama").save_pretrained(folder / "language-model")
    pretrained.tokenizer().save_pretrained(folder / "language-model")
    (folder / "corpus.txt").write_text("A small river runs behind the mill. " * 40, "utf-8")
    pretrained.save_pretrained(folder / ELSEWHERE, "bloom")
    (folder / ELSEWHERE / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    questions = QUESTIONS
    for old, new in FEWER.items():
        assert old in questions
        questions = questions.replace(old, new)
    (folder / "questions.yaml").write_text(questions + FEWER_UPDATES, encoding="utf-8")
    passages = asked.make_run(folder / "questions").path.parent
    (folder / "runs" / "long-context" / "passages").mkdir(parents=True)
    (folder / "runs" / "long-context" / "passages" / "base").symlink_to(passages)
    for variant in ("scaled-dot", "linear", "random+vanilla"):  # which the commands name
        copied = folder / "runs" / "quickstart" / variant
        shutil.copytree(folder / "runs" / "recipe" / "base", copied)
        Run(copied / "seed-1").update(recipe="quickstart", variant=variant)
    (folder / "runs" / "translation" / "multi30k").mkdir(parents=True)
    vanilla = folder / "runs" / "translation" / "multi30k" / "vanilla"
    vanilla.symlink_to(folder / "runs" / "recipe" / "base")


def test_the_two_commands_are_one_line_each() -> None:
    text = README.read_text(encoding="utf-8")
    start = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt "
    assert f"\n{start}. && .venv/bin/attnkit train recipes/quickstart.yaml --jobs 2\n" in text
    assert f"\n{start}'.[test]' && .venv/bin/pytest\n" in text


@pytest.mark.slow
def test_commands_of_the_documentation_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(COMMANDS) >= 12
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for number, command in enumerate([*COMMANDS, OWN]):
        if "attnkit " not in command:  # it makes a file
            subprocess.run(["bash", "-ec", command], check=True, cwd=tmp_path)
            continue
        before, _, words = command.rpartition("attnkit ")
        text = shlex.split(before)[1] + "\n" if before else ""
        text = Path(text.strip()).read_text(encoding="utf-8") if before[:3] == "cat" else text
        words = words.replace("--layer 1 --head 2", "--layer 0 --head 1")  # of the small model
        extra = list[str]()
        if "transfer/" in words:
            if "ATTNKIT_DATA" not in os.environ:
                continue
            extra = [*TRANSFER, "--jobs", "1"] if words.startswith("train") else []
        elif words.startswith("nbce") and "--choices" not in words:
            extra = ["--max-length", "4"]
        elif words.startswith("train") and not re.search("--out|questions.yaml", words):
            extra += ["--out", f"own{number}", *(TINY if "recipe.yaml" in words else [])]
        extra = extra + (QUICK if words.startswith("bench") else [])
        extra = extra + (SHORT if words.startswith("train quickstart") else [])
        extra = extra + (["--rows", "30"] if re.match("probe .*runs/", words) else [])
        extra = extra + (["--transfer", "1", "--tune", "1"] if words.startswith("conv") else [])
        extra = extra + ([*SMALL, "--variant", "linear"] if words.startswith("recipe explain") else [])
        with monkeypatch.context() as patch:
            patch.setattr(mechanism_registry, "_plugged", {})
            done = run_cli(capsys, *shlex.split(words), *extra, stdin=text)
        assert done.code == 0, (command, done.err)
        assert done.out or "wrote" in done.err or "removed" in done.err


def test_the_recipe_of_the_readme_is_a_recipe(tmp_path: Path) -> None:
    """With the published figures that docs/comparing.md adds to one like it."""
    (published,) = [block for _, block in BLOCKS if block.startswith("published:")]
    (tmp_path / "shown.yaml").write_text(SHOWN + published, encoding="utf-8")
    (tmp_path / "questions.yaml").write_text(QUESTIONS, encoding="utf-8")
    assert load(tmp_path / "questions.yaml").variants["base"].task == "question-answering"
    file = load(tmp_path / "shown.yaml")
    assert set(file.variants) == {"vanilla", "linear", "random"}
    assert file.published is not None
    assert set(file.published.scores) == {"vanilla", "random"}


def test_every_method_of_nbce_has_its_line() -> None:
    page = (DOCS / "long-context.md").read_text(encoding="utf-8")
    for word in METHODS:
        assert f"\n| `{word}` | " in page


def test_the_example_has_15_lines_and_is_what_it_says() -> None:
    assert EXAMPLE.count("\n") == 15
    made: dict[str, Any] = {}
    exec(EXAMPLE, made)
    cosine = made["Cosine"](Shape(heads=1, head_width=2, max_length=4))
    q, k = (torch.tensor([[rows]], dtype=torch.float64) for rows in ([[5, 0]], [[2, 0], [0, 9]]))
    mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
    expected = torch.tensor([[[[10.0, 0.0]]]], dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(cosine.weights(q, k, k, mask), expected)


def test_generated_parts_are_current() -> None:
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for write in (reference.mechanisms, reference.choosing):
        page = (DOCS / f"{write.__name__}.md").read_text(encoding="utf-8")
        assert write(page) == page, "run: python docs/reference.py"
    keys = (DOCS / "recipe-keys.md").read_text(encoding="utf-8")
    assert reference.recipe_keys() == keys, "run: python docs/reference.py"


def test_every_metric_has_a_definition() -> None:
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in page.split("\n") if re.match(r"\| `[\w-]+` \|.*\|.*\|.*\|", line)
    ]
    words = {"higher": "", "lower": ", lower is better", "neither": ", neither is better"}
    for name, facts in METRICS.items():
        title, definition, cut_by, scale = next(row[1:5] for row in rows if row[0] == f"`{name}`")
        assert (title, cut_by.strip("`")) == (facts.title, facts.cut_by)
        assert definition
        assert scale.endswith(words[facts.better]), name


def test_tasks_name_commands_and_options_that_there_are() -> None:
    """As the recorded help has them."""
    golden = ROOT / "tests" / "cli" / "golden"
    tasks = re.findall("`attnkit ([a-z-]+)([^`]*)`", (DOCS / "tasks.md").read_text("utf-8"))
    assert len(tasks) > 20
    for command, rest in tasks:
        pages = [path.read_text("utf-8") for path in golden.glob(f"{command}*.txt")]
        assert pages, command
        for option in re.findall("--[a-z-]+", rest):
            assert any(f"{option} " in page for page in pages), (command, option)


def test_the_version_has_a_section_in_the_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(__version__)}$", text, re.MULTILINE)


def test_every_shipped_recipe_is_in_a_table_of_results() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    for name in shipped():
        assert f"| `{name}` |" in text, name


def test_the_limits_of_the_security_page_are_those_of_the_code() -> None:
    table = SECURITY.read_text(encoding="utf-8").partition("## Limits")[2]
    mib, gib = 1 << 20, 1 << 30
    for said in (
        f"{yaml_nodes.MAX_BYTES >> 10} KiB, {yaml_nodes.MAX_NODES:,} keys and values, "
        f"{yaml_nodes.MAX_DEPTH} levels, {loading.MAX_VARIANTS} variants "
        f"({sweep.MAX_VARIANTS:,} in a sweep)",
        f"| a line of text | {formats.MAX_LINE_BYTES // mib} MiB |",
        f"{formats.MAX_RATIO} times its size, beyond {formats.FREE // mib} MiB",
        f"| {files.JSON_LIMIT // mib} MiB, scores {results.SCORES_LIMIT // mib} MiB |",
        f"{download.LIMIT // gib} GiB; {download.EXTRACTED_LIMIT // gib} GiB |",
    ):
        assert said in table, said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there_and_nothing_is_left_to_fill_in(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / name).exists(), name
    assert not re.search("@@|TODO", text)
