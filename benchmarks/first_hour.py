"""The first hour of a student, a researcher, an engineer and a teacher: each command with its time and output.

    python benchmarks/first_hour.py

All steps run in one new folder with an empty cache, in the order of a person who reads the README. Each must end with
exit code 0, or with the error code that a wrong word deserves. Writes results/first-hour.md.
"""

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import arguments, attnkit, children_seconds, cores, environment, facts, publish, say, table

SENTENCE = "The poor woman stole the letters."
SMALL = "train.steps=30 train.valid_every=0"
PAIRS = "".join(f"the {w} sees {n} cats\t{w} {n}\n" for n in range(30) for w in ("dog", "king"))
QUESTION = '{"question": "Who runs?", "answers": ["Ann"], "contexts": ["Ann runs.", "Bo sleeps."]}\n'
FILES = {
    "pairs.tsv": "english\tshort\n" + PAIRS,
    "notes/seine.txt": "The Seine flows through Paris.",
    "notes/tiber.md": "The Tiber flows through Rome.",
    "questions.jsonl": QUESTION * 3,
    "own.yaml": "task: translation\ndata: {train: pairs.tsv, source: english, target: short, "
    "split: {valid: 5, test: 5}}\ntokenizer: {size: 60}\nmodel: {width: 16, layers: 1, ff: 16}\n"
    "train: {steps: 20}\nsearch: {max_length: 8}\n",
    "length.py": '"""Length of the output.\n\nSource: an example."""\n\n\n'
    "def score(outputs, references):\n    return [len(line.split()) for line in outputs]\n",
}
PYTHON = {
    "light": "import attnkit, sys; print('torch' in sys.modules)",
    "maps": f"import attnkit; a = attnkit.load('demo').attention({SENTENCE!r}); "
    "print(a, len(a._repr_html_()), a.maps['cross'][0, 1].shape)",
    "train": "import attnkit; c = attnkit.train('quickstart', {'train.steps': 30}, "
    "variants=['scaled-dot', 'linear'], out='lesson'); print(c)",
    "contexts": "import attnkit; print(attnkit.contexts(attnkit.load('demo'), ['A king laughs.', "
    "'A dog sleeps.'], 'The king', pool='mean', max_length=8))",
}
STEPS: dict[str, list[tuple[str, int]]] = {  # arguments of attnkit, py NAME, or a line for the shell
    "anyone": [("py light", 0), ("--help", 0), ("demo", 0), ("train quickstart --jobs 2", 0)],
    "student": [
        (f"visualize-attn demo {shlex.quote(SENTENCE)}", 0),
        ("visualize-attn demo 'The aunt who sang saw me.' --from who --to aunt", 0),
        ("visualize-attn demo 'A zebra crosses.' --save zebra.html", 0),
        ("mechanisms linear", 0),
        ("train quickstart model.attention=softmax", 78),
        ("train quickstart --epochs 3", 2),
        (f"train quickstart --variant linear {SMALL} --out mine", 0),
        ("| echo 'The king laughs.' | attnkit generate mine/quickstart/linear/seed-1", 0),
    ],
    "researcher": [
        ("recipe explain quickstart", 0),
        (f"train quickstart --variant scaled-dot --variant linear {SMALL} --out paper", 0),
        ("eval paper/quickstart --format latex", 0),
        ("eval paper/quickstart --metrics length --plugin length.py", 0),
        ("plot paper/quickstart --save curves.pdf", 0),
        ("report paper/quickstart -o report.html", 0),
        ("verify paper/quickstart", 0),
    ],
    "engineer": [
        ("train own.yaml", 0),
        ("| attnkit generate runs/own/base/seed-1 < notes/seine.txt", 0),
        ("nbce demo --context notes --prompt 'The king' --trace --max-length 8", 0),
        ("nbce demo --context notes/*.md notes/seine.txt --prompt King --choices Frau,Mann", 0),
        ("| printf 'A king.\\nA queen.\\n' | attnkit nbce demo --context notes --prompts -", 0),
        ("eval questions.jsonl", 2),
        ("eval questions.jsonl --model demo contexts.beta=0,0.25", 0),
        ("export demo --to onnx exported", 0),
    ],
    "teacher": [("py maps", 0), ("py train", 0), ("py contexts", 0), ("runs lesson", 0)],
}


def run(step: str, expected: int, folder: Path) -> list[str]:
    """Run one step; return the command, its last line, its seconds and its processor seconds."""
    program = shlex.join(attnkit())
    kind, _, rest = step.partition(" ")
    shown, line = f"attnkit {step}", f"{program} {step}"
    if kind == "py":
        shown, line = f"python: {PYTHON[rest]}", shlex.join([sys.executable, "-c", PYTHON[rest]])
    elif kind == "|":
        shown, line = rest, rest.replace("attnkit ", f"{program} ")
    say(shown)
    env = environment(ATTNKIT_CACHE=str(folder / "cache"))
    began, used = time.perf_counter(), children_seconds()
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, env=env)
    seconds, used = time.perf_counter() - began, children_seconds() - used
    if done.returncode != expected:
        raise SystemExit(f"{shown}\nended with {done.returncode}, not {expected}:\n{done.stderr}")
    lines = [text for text in (done.stdout or done.stderr).splitlines() if text.strip()]
    last = " ".join(lines[-1].split())[:100] if lines else ""
    return [*(text.replace("|", "\\|") for text in (f"`{shown[:110]}`", last)), f"{seconds:.1f}", f"{used:.1f}"]


def main() -> None:
    about, body = facts(arguments(__doc__)) | {"threads": str(cores())}, list[str]()
    about["load of the machine"] += (
        "; on a busy machine seconds are upper bounds, while processor seconds hardly depend on the load"
    )
    about["aims on two idle cores"] = (
        "`attnkit demo` 10 s with an empty cache, `import attnkit` 0.2 s (beside Python's own start), the first "
        "training 120 s"
    )
    with tempfile.TemporaryDirectory() as temporary:
        for name, text in FILES.items():
            (Path(temporary) / name).parent.mkdir(exist_ok=True)
            (Path(temporary) / name).write_text(text, encoding="utf-8")
        for person, steps in STEPS.items():
            rows = [run(step, code, Path(temporary)) for step, code in steps]
            body += [f"## {person}", table("step | last line | s | processor s", rows, 2)]
    publish("first-hour", "The first hour of four people", about, body)


if __name__ == "__main__":
    main()
