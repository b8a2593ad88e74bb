"""Tests of `--help`, `--version`, usage errors and completion."""

import os
import resource
import statistics
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.shell import Command

import attnkit
from attnkit.cli import COMMANDS, help, load

GOLDEN = Path(__file__).parent / "golden"
PAGES = [(), *((name, *sub) for name in COMMANDS for sub in [(), *zip(getattr(load(name), "commands", ()))])]
"""Words of every page of help: the root, the commands, their subcommands."""


def test_help_takes_less_than_0_3_seconds(cli_process: Command) -> None:
    """Median of five processes, startup included; processor time, since other processes may compete."""
    cli_process("--help")
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert cli_process("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert statistics.median(times) < 0.3


@pytest.mark.parametrize("words", PAGES, ids=lambda words: "-".join(words) or "attnkit")
def test_help_is_worded_as_recorded(words: tuple[str, ...], cli: Cli) -> None:
    """The only test of the exact wording, which is recorded at 80 columns in tests/cli/golden/.

    To record it again and review the changes: ATTNKIT_UPDATE_GOLDEN=1 pytest
    tests/cli/test_help.py -k worded; git diff tests/cli/golden
    """
    shown = cli(*words, "--help").out
    path = GOLDEN / f"{'-'.join(words) or 'attnkit'}.txt"
    if os.environ.get("ATTNKIT_UPDATE_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_page() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {"-".join(w) or "attnkit" for w in PAGES}


def test_version_is_one_line(cli: Cli) -> None:
    assert cli("--version") == (0, f"attnkit {attnkit.__version__}\n", "")


def test_missing_command_is_a_usage_error_with_the_help(cli: Cli) -> None:
    done = cli(code=2)
    assert done.out == ""
    assert done.err.startswith("Usage: attnkit COMMAND ... [OPTIONS]\n")


@pytest.mark.parametrize("width", [50, 200])
def test_help_fits_the_terminal(width: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for name in COMMANDS:
        shown = cli(name, "--help").out
        assert shown.isascii()
        assert "\x1b" not in shown
        lines = [line for line in shown.splitlines() if not line.startswith("    ")]
        assert max(map(len, lines)) <= min(width, help.MAX_WIDTH)


def test_examples_are_not_wrapped(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for command, example in [
        (["generate"], "attnkit generate RUN input.txt --output output.txt --beam 8"),
        (["recipe", "show"], "attnkit recipe show quickstart"),  # its docstring has only examples
    ]:
        assert f"\n    {example}\n" in cli(*command, "--help").out


def test_option_has_the_same_short_form_in_all_commands() -> None:
    """-o was a short form of --output in some commands only."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for words in PAGES[1:]:
        command = load(words[0])
        for name in words[1:]:
            command = command.commands[name]
        for option in command.params:
            short = tuple(name for name in option.opts if not name.startswith("--"))
            for long in set(option.opts) - set(short):
                found.setdefault(long, set()).add(short)
    assert found["--output"] == {("-o",)}
    assert {long: short for long, short in found.items() if len(short) > 1} == {}


def test_tab_completes_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"_ATTNKIT_COMPLETE": "complete_bash", "COMP_WORDS": "attnkit\ntr", "COMP_CWORD": "1"}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    assert cli().out.split() == ["train"]
