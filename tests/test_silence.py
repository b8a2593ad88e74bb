"""Tests that no process of attnkit contacts the network or writes a device id."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.network import guarded_environment, network_calls
from helpers.pretrained import save_pretrained
from helpers.trained import make_run

import attnkit


def run(folder: Path, *words: str, **environment: str) -> None:
    """Run Python with these words and the guard of the network."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=300,
        env={**guarded_environment(folder), "PYTHONPATH": str(Path(attnkit.__file__).parents[1]), **environment},
    )
    assert done.returncode == 0, done.stderr


def test_the_guard_records_calls_of_a_child_process(tmp_path: Path) -> None:
    code = (
        "import socket, subprocess, sys\n"
        "try: socket.socket().connect(('192.0.2.1', 80))\n"
        "except OSError: pass\n"
        "sys.argv[1:] or subprocess.run([sys.executable, __file__, 'again'])\n"
        "try: socket.getaddrinfo('example.org', 80)\n"
        "except OSError: pass\n"
    )
    (tmp_path / "code.py").write_text(code)
    run(tmp_path, "code.py")
    assert sorted(network_calls(tmp_path)) == ["connect 192.0.2.1"] * 2 + ["lookup example.org"] * 2


@pytest.mark.parametrize(("variables", "expected"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_telemetry_is_off_before_libraries_are_imported_unless_the_user_sets_it(
    variables: dict[str, str], expected: str
) -> None:
    code = "import attnkit, os; print(*(os.environ[name] for name in attnkit.SILENCED))"
    env = {name: value for name, value in os.environ.items() if name not in attnkit.SILENCED} | variables
    done = subprocess.run([sys.executable, "-c", code], env=env, text=True, capture_output=True, check=True)
    assert done.stdout.split()[1] == expected


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_onnxruntime_writes_no_device_id_and_looks_nothing_up(tmp_path: Path) -> None:
    run(tmp_path, "-c", "import attnkit, onnxruntime; onnxruntime.get_device()")
    assert not network_calls(tmp_path)
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert not list(tmp_path.rglob(".ses"))


RUN = "runs/toy/base/seed-1"
SMALL = "train.steps=2 data.size=100 tokenizer.size=200 model.layers=1 search.max_length=2"
COMMANDS = {
    "transformers": f"export {RUN} out-huggingface --to huggingface",
    "ctranslate2": f"generate {RUN} text --engine ctranslate2",
    "onnxruntime": "export runs/toy/lm/seed-1 out-onnx --to onnx",
    "matplotlib": f"visualize-attn {RUN} dog --save map.png",
    **{
        name: f"train quickstart {SMALL} train.log_to=[{name}] --variant linear --out {name}"
        for name in ("tensorboard", "wandb", "trackio")
    },
    "huggingface_hub": "nbce model --context text --prompt two --max-length 3 --device cpu",
}
"""A command for each package that imports the package."""
PROGRAM = """
import json, os, sys, time
import attnkit
if "onnxruntime" in sys.argv: import onnxruntime
begun = time.monotonic()
from attnkit.cli import main
for package, words in json.load(open("commands.json")).items():
    os.environ["ATTNKIT_TEST_NETWORK"] = f"{os.getcwd()}/seen-{package}"
    if code := main(words.split()): sys.exit(f"{package}: {code}")
time.sleep(max(0, begun + 12 - time.monotonic()))
"""
"""Runs for 12 s, since onnxruntime looked its host up 8 s after the import."""


@pytest.mark.slow
def test_commands_that_import_optional_packages_look_nothing_up(tmp_path: Path) -> None:
    commands = {package: words for package, words in COMMANDS.items() if find_spec(package)}
    make_run(tmp_path)
    make_run(tmp_path, "lm", task="language-modeling")  # one graph
    (tmp_path / "text").write_text("one red dog\n")
    if "huggingface_hub" in commands:
        save_pretrained(tmp_path / "model", "llama")
    (tmp_path / "commands.json").write_text(json.dumps(commands))
    run(tmp_path, "-c", PROGRAM, *commands, ATTNKIT_CACHE=str(tmp_path / "c"))
    assert not list(tmp_path.glob("seen*"))
    assert not list(tmp_path.rglob(".ses"))  # a device id
    left = {path.name for path in (tmp_path / "home").iterdir()}
    assert left <= {"attnkit", "matplotlib", "fontconfig", "guard.c"}, left
