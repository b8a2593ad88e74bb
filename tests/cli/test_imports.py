"""Test that commands that only read import no heavy package; one process runs them all and checks after each."""

import json
import subprocess
import sys
from pathlib import Path

from helpers.scored_runs import scored_run
from helpers.shell import environment
from helpers.trained import ROWS

from attnkit.cli import COMMANDS, load

HEAVY = ["torch", "numpy", "sacrebleu", "sentencepiece", "rouge_score", "safetensors"]
PLUGIN = '"""Mine: y = v.\n\nSource: I 2026."""\nfrom attnkit.attention import Kernel\n'
PLUGIN += "class Mine(Kernel):\n    cost = 'T'\n"
PROGRAM = r"""
import json, os, sys
from attnkit.cli import main
for words, code, banned in json.loads(sys.argv[1]):
    os.environ.pop("_ATTNKIT_COMPLETE", None)
    if words[:1] == ["<TAB>"]:
        count = str(len(words) - 2)
        complete = {"_ATTNKIT_COMPLETE": "complete_bash", "COMP_CWORD": count}
        os.environ |= complete | {"COMP_WORDS": "\n".join(words[1:])}
        words = []
    assert main(words) == code, words
    found = [name for name in banned if any((m + ".").startswith(name + ".") for m in sys.modules)]
    assert not found, (words, found)
"""


def test_commands_that_read_import_nothing_heavy(tmp_path: Path) -> None:
    for variant in ("one", "two"):
        run = scored_run(tmp_path, variant, [row.target for row in ROWS])
        run.log.append({"step": 1, "epoch": 0, "loss": 2.0, "seconds": 1.0})
    recipe = "task: translation\ndata: {corpus: toy-translation}\ntrain: {lr: LR}\n"
    for name, lr in (("right", "1e-3"), ("wrong", "fast")):
        (tmp_path / f"{name}.yaml").write_text(recipe.replace("LR", lr))
    (tmp_path / "mine.py").write_text(PLUGIN)
    pages = [
        " ".join((name, *sub, "--help"))
        for name in COMMANDS
        for sub in [(), *zip(getattr(load(name), "commands", ()))]
    ]
    most, torch = [name for name in HEAVY if name != "sentencepiece"], ["torch"]
    groups = [
        (0, [*HEAVY, "attnkit.recipe"], ["--version", "--help"]),
        (0, HEAVY, [*pages, "<TAB> attnkit train quickstart model.n"]),
        (78, HEAVY, ["train wrong.yaml", "train wrong.yaml --dry-run"]),
        (
            0,
            [*torch, "attnkit.mechanisms.scaled_dot"],
            [
                "mechanisms",
                "mechanisms linear",
                "mechanisms --plugin mine.py",
                "recipe list",
                "recipe show right.yaml",
                "recipe copy right.yaml copied.yaml",
            ],
        ),
        (0, most, ["runs", "plot runs", "runs clean --yes"]),
        (0, torch, ["compare runs/toy/one runs/toy/two", "report runs/toy -o light.html"]),
    ]
    calls = [(words.split(), code, banned) for code, banned, commands in groups for words in commands]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(calls)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
