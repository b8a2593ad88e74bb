"""`--help`, `--version`, usage errors and completion: at once, at any width, without torch."""

import os
import re
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.shell import Command, environment

import attnkit
from attnkit.cli import COMMANDS, help, load, main

GOLDEN = Path(__file__).parent / "golden"
PAGES = [
    (),
    *((name, *sub) for name in COMMANDS for sub in [(), *zip(getattr(load(name), "commands", ()))]),
]
"""Words of every page of help: the root, the commands, their subcommands."""


def loaded_after(*words: str) -> set[str]:
    """The heavy modules that a command line has imported by its end."""
    code = (
        "import sys\n"
        "from attnkit.cli import main\n"
        f"code = main({list(words)!r})\n"
        "heavy = ('torch', 'numpy', 'sacrebleu', 'sentencepiece', 'rouge_score', 'safetensors')\n"
        "print(*(name for name in heavy if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [("--help",), ("--version",), *((c, "--help") for c in COMMANDS)])
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    assert loaded_after(*words) == set()


def test_a_wrong_recipe_is_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("task: translation\ndata: {corpus: toy-translation}\ntrain: {lr: fast}\n")
    assert loaded_after("train", str(path)) == set()
    assert loaded_after("train", str(path), "--dry-run") == set()


def test_help_answers_in_0_3_seconds(command: Command) -> None:
    """Median of ten processes, their start included; processor time, since others may compete."""
    command("--help")
    times = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert command("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert statistics.median(times) < 0.3


@pytest.mark.parametrize("words", PAGES, ids=lambda words: "-".join(words) or "attnkit")
def test_help_is_worded_as_recorded(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact wording at 80 columns, in tests/cli/golden/; the only test that pins it.

    To record it again, and read the difference: ATTNKIT_UPDATE_GOLDEN=1 pytest
    tests/cli/test_help.py -k worded; git diff tests/cli/golden
    """
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    path = GOLDEN / f"{'-'.join(words) or 'attnkit'}.txt"
    if os.environ.get("ATTNKIT_UPDATE_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_no_golden_help_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == {"-".join(w) or "attnkit" for w in PAGES}


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"attnkit {attnkit.__version__}\n"


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: attnkit COMMAND ... [OPTIONS]\n")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_help_fits_the_terminal(
    name: str, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= min(width, help.WIDEST)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_with_an_explanation(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main([name, "--help"]) == 0
    for line in capsys.readouterr().out.splitlines():
        if re.match(r"  -", line):
            assert re.match(r"  -\S.*\s{2,}\S", line) or len(line) > 40, line


PAGE = [
    ("Usage", "attnkit x RUN [OPTIONS]"),
    ("", "What it does, in words that are long enough to be wrapped once.\n\n  attnkit x runs/a"),
    ("Options", [("--out DIR", "Where it goes, in words that have to be wrapped as well.")]),
    ("Nothing", []),
]


def test_an_option_has_one_short_form_in_all_commands() -> None:
    """-o was that of --output in some commands only."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for words in PAGES[1:]:
        command = load(words[0])
        for name in words[1:]:
            command = command.commands[name]
        for option in command.params:
            for long in (name for name in option.opts if name.startswith("--")):
                short = [name for name in option.opts if not name.startswith("--")]
                found.setdefault(long, set()).add(tuple(short))
    assert found["--output"] == {("-o",)}
    assert {long: short for long, short in found.items() if len(short) > 1} == {}


def test_a_wide_page_has_two_columns() -> None:
    assert help.draw(PAGE, 61) == (
        "Usage: attnkit x RUN [OPTIONS]\n"
        "\n"
        "What it does, in words that are long enough to be wrapped\n"
        "once.\n"
        "\n"
        "  attnkit x runs/a\n"
        "\n"
        "Options:\n"
        "  --out DIR  Where it goes, in words that have to be wrapped\n"
        "             as well.\n"
    )


def test_a_narrow_page_has_one() -> None:
    assert help.draw(PAGE, 40).splitlines()[-3:] == [
        "  --out DIR",
        "      Where it goes, in words that have",
        "      to be wrapped as well.",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "no such command 'trian'. Did you mean 'train'? See `attnkit --help`"),
        (["--bold"], "no such option: --bold; see `attnkit --help`"),
        (["train"], "missing argument 'RECIPE'; see `attnkit train --help`"),
        (["train", "x", "--ofline"], "no such option: --ofline"),
        (["train", "x", "--seed", "one"], "invalid value for '--seed'"),
        (["train", "a.yaml", "b.yaml"], "'b.yaml' is not KEY=VALUE"),
    ],
)
def test_a_usage_error_is_one_line_that_says_what_is_right(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"attnkit: error: {message}")
    assert shown.count("\n") == 1


def completed(line: str, folder: Path | None = None, **variables: str) -> list[str]:
    """What bash would offer at the end of a line; it takes = as a word of its own."""
    words = re.sub("=", " = ", line).split(" ") if "=" in line else line.split(" ")
    words = [word for word in words[:-1] if word] + words[-1:]
    words = words[:-1] if words[-2:] == ["=", ""] else words
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "attnkit"],
        env=environment(
            _ATTNKIT_COMPLETE="complete_bash",
            COMP_WORDS="\n".join(words),
            COMP_CWORD=str(len(words) - 1),
            **variables,
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not re.search(r"\| +(torch|numpy|sacrebleu)$", done.stderr, re.MULTILINE)
    return done.stdout.split()


def test_tab_completes_commands() -> None:
    assert completed("attnkit tr") == ["train"]


def test_tab_completes_keys_of_a_recipe() -> None:
    assert completed("attnkit train quickstart train.step") == ["train.steps="]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("train quickstart model.norm=", ["pre", "post"]),
        ("train quickstart model.norm=po", ["post"]),
        ("train quickstart train.compile=", ["true", "false"]),
        ("train quickstart train.log_to=w", ["wandb"]),
        ("train quickstart model.attention=linear,perf", ["linear,performer"]),
        ("train quickstart model.attention.cross=synthesizer-d", ["synthesizer-dense"]),
        ("train quickstart data.corpus=personachat-o", ["personachat-official"]),
        ("recipe explain quickstart baseline=l", ["linear"]),
        ("train quickstart train.lr=1,2 --variant linear", ["linear,lr=1", "linear,lr=2"]),
        ("eval search.meth", ["search.method="]),
        ("eval quickst", ["quickstart"]),
        ("eval train.step", []),
        ("eval runs --metrics chrf,answer-m", ["chrf,answer-match"]),
        ("compare runs --metric exa", ["exact-match"]),
    ],
)
def test_tab_completes_values(line: str, offered: list[str]) -> None:
    assert completed(f"attnkit {line}") == offered


def test_tab_completes_runs(tmp_path: Path) -> None:
    for name in ("runs/toy/lr=0.1/seed-1", "runs/toy/lr=0.2/seed-1", "more/toy/base/seed-3"):
        (tmp_path / name).mkdir(parents=True)
        for file in ("manifest.json", "recipe.yaml"):
            (tmp_path / name / file).touch()
    (tmp_path / "runs/toy/lr=0.1/seed-1/checkpoints").mkdir()
    one, two = "runs/toy/lr=0.1", "runs/toy/lr=0.2"
    assert completed("attnkit generate ", tmp_path) == [f"{one}/seed-1", f"{two}/seed-1"]
    assert completed("attnkit visualize-attn runs/toy/lr=0.2", tmp_path) == ["0.2/seed-1"]
    assert completed("attnkit compare runs/t", tmp_path) == [
        "runs/toy", one, f"{one}/seed-1", two, f"{two}/seed-1"
    ]  # fmt: skip
    for command in ("eval", "plot", "runs clean", "runs pack"):
        found = completed(f"attnkit {command} more/", tmp_path)
        assert found == ["more/toy", "more/toy/base", "more/toy/base/seed-3"], command
    (tmp_path / "attnkit.yaml").write_text("out: more\n")
    assert completed("attnkit generate ", tmp_path, XDG_CONFIG_HOME=str(tmp_path)) == [
        "more/toy/base/seed-3"
    ]
