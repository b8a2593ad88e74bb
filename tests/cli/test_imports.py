"""Commands that only read import nothing heavy: one process runs them all and looks after each."""

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
LOOK = r"""
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
    texts = [row.target for row in ROWS]
    for variant in ("one", "two"):
        run = scored_run(tmp_path, variant, texts)
        run.log.append({"step": 1, "epoch": 0, "loss": 2.0, "seconds": 1.0})
    recipe = "task: translation\ndata: {corpus: toy-translation}\ntrain: {lr: LR}\n"
    for name, lr in (("right", "1e-3"), ("wrong", "fast")):
        (tmp_path / f"{name}.yaml").write_text(recipe.replace("LR", lr))
    (tmp_path / "mine.py").write_text(PLUGIN)
    pages = [
        [name, *sub, "--help"]
        for name in COMMANDS
        for sub in ([], *([one] for one in getattr(load(name), "commands", ())))
    ]
    tab = ["<TAB>", "attnkit", "train", "quickstart", "model.n"]
    most, torch = [name for name in HEAVY if name != "sentencepiece"], ["torch"]
    asked = [
        *((words, 0, [*HEAVY, "attnkit.recipe"]) for words in (["--version"], ["--help"])),
        *((words, 0, HEAVY) for words in (*pages, tab)),
        (["train", "wrong.yaml"], 78, HEAVY),
        (["train", "wrong.yaml", "--dry-run"], 78, HEAVY),
        *(
            (words.split(), 0, [*torch, "attnkit.mechanisms.scaled_dot"])
            for words in (
                "mechanisms",
                "mechanisms linear",
                "mechanisms --plugin mine.py",
                "recipe list",
                "recipe show right.yaml",
                "recipe copy right.yaml copied.yaml",
            )
        ),
        *((words.split(), 0, most) for words in ("runs", "plot runs", "runs clean --yes")),
        *(
            (words.split(), 0, torch)
            for words in ("compare runs/toy/one runs/toy/two", "report runs/toy -o light.html")
        ),
    ]
    done = subprocess.run(
        [sys.executable, "-c", LOOK, json.dumps(asked)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
