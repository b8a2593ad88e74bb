"""Tests of the console: exit codes, error lines, harmless output, closed streams, protected files."""

import errno
import io
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from helpers.shell import Command

from attnkit import errors
from attnkit.cli import console, main
from attnkit.cli.input import destination, open_lines
from attnkit.cli.output import check_save, save
from attnkit.errors import MissingInputError, OutputPathError


def run(function: Callable[[], Any], *words: str) -> int:
    """Run a function as the only command of `console.run`."""
    app = typer.Typer(add_completion=False)
    app.callback(invoke_without_command=True)(function)
    return console.run(lambda: typer.main.get_command(app), words)


def run_failing(error: BaseException, *words: str) -> int:
    """Run a command that raises this error."""

    def fail() -> None:
        raise error

    return run(fail, *words)


LINE = "a.yaml:3:1: train.lr: must be above 0, got -1"
SMALLER = (
    "attnkit: error: out of memory: use smaller batches: train.batch_tokens=N to train, --batch-tokens N to decode\n"
)
OUTCOMES: list[tuple[BaseException, int, str]] = [
    *(
        (kind(LINE), code, f"attnkit: error: {LINE}\n")
        for kind, code in {
            errors.AttnkitError: 1,
            errors.UsageError: 2,
            errors.DivergedError: 3,
            errors.DataError: 65,
            errors.MissingInputError: 66,
            errors.UnavailableError: 69,
            errors.MemoryLimitError: 71,
            errors.OutputPathError: 73,
            errors.OutputError: 74,
            errors.RecipeError: 78,
        }.items()
    ),
    (errors.RecipeError("a:1:1: x\nb: y"), 78, "attnkit: error: a:1:1: x\nattnkit: error: b: y\n"),
    (errors.StoppedError("stopped by SIGTERM"), 75, "attnkit: stopped by SIGTERM\n"),
    *((error, 130, "attnkit: interrupted\n") for error in (KeyboardInterrupt(), SystemExit(130), typer.Abort())),
    *(
        (error, 71, SMALLER)
        for error in (
            MemoryError(),
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            RuntimeError("std::bad_alloc"),
        )
    ),
    (
        OSError(errno.ENOSPC, "No space left on device", "out/x.txt"),
        74,
        "attnkit: error: out/x.txt: writing failed: No space left on device\n",
    ),
    (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    (
        errors.DataError("corpus \x1b[31m\x9b[/red]\u2028\u202e\x00\r is bad"),
        65,
        "attnkit: error: corpus \\x1b[31m\\x9b[/red]\\u2028\\u202e\\x00\\x0d is bad\n",
    ),
]


@pytest.mark.parametrize(("error", "code", "line"), OUTCOMES, ids=repr)
def test_every_outcome_has_an_exit_code_and_a_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_failing(error) == code
    assert capsys.readouterr().err == line


def test_bug_shows_a_traceback_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_failing(ValueError("a \x1b]0;title\x07 \u202e token")) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "ValueError: a \\x1b]0;title\\x07 \\u202e token\n" in shown
    assert shown.endswith("attnkit: error: this is a bug in attnkit 0.1.0: please report it\n")


def test_warning_of_a_library_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def warn() -> None:
        warnings.simplefilter("default")
        warnings.warn("slow\n  path \x1b[0m", stacklevel=1)

    assert run(warn) == 0
    assert capsys.readouterr().err == "attnkit: warning: slow path \\x1b[0m\n"


@pytest.mark.parametrize("off", ["", "NO_COLOR", "TERM", "--no-color"])
def test_error_is_red_on_a_terminal_unless_color_is_off(off: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "_color_allowed", True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if off.isupper():
        monkeypatch.setenv(off, "dumb")
    assert run_failing(errors.UsageError("no"), *([off] if off.startswith("-") else [])) == 2
    word = "error:" if off else "\x1b[1;31merror:\x1b[0m"
    assert terminal.getvalue() == f"attnkit: {word} no\n"


def test_command_line_is_quoted_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    def show(words: list[str]) -> None:
        console.write(console.command_line(without=["--fresh"]))

    app = typer.Typer(add_completion=False)
    app.command()(show)
    assert console.run(lambda: typer.main.get_command(app), ["a b", "--no-color", "it's"]) == 0
    assert capsys.readouterr().out == "attnkit 'a b' --no-color 'it'\"'\"'s'"


def test_full_device_gives_code_74_and_one_line(cli_process: Command) -> None:
    with open("/dev/full", "w") as full:
        done = cli_process("--help", stdout=full.fileno())
    assert done.returncode == 74
    assert done.stderr == "attnkit: error: standard output: writing failed: No space left on device\n"


def test_closed_pipe_ends_without_a_message(cli_process: Command) -> None:
    read, write = os.pipe()
    os.close(read)
    done = cli_process("--help", stdout=write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variables", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}])
def test_text_outside_the_locale_is_no_crash(variables: dict[str, str], cli_process: Command) -> None:
    done = cli_process("train", "\u65e5\u672c\u1e9e.yaml", **variables)
    assert done.returncode == 66
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


HOSTILE_NAMES = ["\x1b]0;title\x07.yaml", "[red]x[/red].yaml", "\u202egnp.yaml", "\udc80\udcff.yaml", "a\nb\rc.yaml"]
HOSTILE_NAMES += ["x" * 5000, "--", "", ".", "/", "/dev/null", "/proc/self/mem", "../" * 50 + "etc/passwd"]
HOSTILE_NAMES += ["~/x.yaml", "%s%n.yaml", "{0}.yaml", "a\x00b.yaml"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_recipe_name_gives_one_harmless_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", name]) in (2, 65, 66, 78)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("attnkit: error: ")
    assert shown.err.count("\n") == 1
    assert not [c for c in shown.err[:-1] if not c.isprintable()]


def test_text_in_place_of_a_file_name_gives_a_hint() -> None:
    message = "'the old dog': no such file; to pass a text, pipe it"
    with pytest.raises(MissingInputError, match=message), open_lines("the old dog"):
        pass


def test_outputs_do_not_overwrite_the_files_of_a_run(tmp_path: Path) -> None:
    for name in ("recipe.yaml", "manifest.json", "scores.json", "tokenizer.model"):
        (tmp_path / name).write_text("kept")
    for name in ("scores.json", "checkpoints/step-1/state.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        with pytest.raises(OutputPathError, match=r"belongs to the run in .*; choose another name"):
            check_save(tmp_path / name, (".json",))
    with pytest.raises(OutputPathError), destination(tmp_path / "tokenizer.model"):
        pass
    with pytest.raises(OutputPathError):
        save(tmp_path / "data" / ".." / "manifest.json", "lost")
    assert (tmp_path / "tokenizer.model").read_text() == "kept"
    check_save(tmp_path / "maps.html", (".html",))
    with destination(tmp_path / "notes.txt") as write:
        write("new")
    assert (tmp_path / "notes.txt").read_text() == "new"
