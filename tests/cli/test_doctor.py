"""`attnkit doctor`, and the defaults file that it shows."""

import csv
import io
import json
from pathlib import Path

import pytest
from helpers.shell import Command

from attnkit.cli import main, user_defaults
from attnkit.cli.commands.doctor import EXTRAS
from attnkit.errors import RecipeError


@pytest.fixture
def defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The defaults file, not there yet; without a data folder from the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "attnkit.yaml"


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """What is found, by its name."""
    assert main(["doctor", *words, "--format", "csv"]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    return {row["what"]: row["found"] for row in rows}


def test_the_file_is_below_the_folder_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for base in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", base)
        assert user_defaults.file() == tmp_path / ".config" / "attnkit.yaml"


def test_the_command_line_goes_before_the_environment_before_the_file(
    defaults: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("file", "variable", "option"):
        (defaults.parent / name / "multi30k").mkdir(parents=True)
    assert doctor(capsys)["data (--data-dir)"].startswith("no folder: set ATTNKIT_DATA")
    monkeypatch.setenv("HOME", str(defaults.parent))
    defaults.write_text("data_dir: ~/file\nout: results\ndevice: null\n")
    found = doctor(capsys)
    assert found["data (--data-dir)"] == f"{defaults.parent}/file: no known corpus"
    assert found["runs (--out)"].startswith("results: writable, will be made, ")
    assert found["defaults file"] == f"{defaults}: data_dir: {defaults.parent}/file, out: results"
    monkeypatch.setenv("ATTNKIT_DATA", "variable")
    assert doctor(capsys)["data (--data-dir)"] == "variable: no known corpus"
    found = doctor(capsys, "--data-dir", "option", "--out", "mine")
    assert found["data (--data-dir)"] == "option: no known corpus"
    assert found["runs (--out)"].startswith("mine: ")
    assert found["device"] == "auto: cpu"


def test_other_commands_take_its_values(defaults: Path, capsys: pytest.CaptureFixture[str]) -> None:
    defaults.write_text("out: results\n")
    words = ["train", "quickstart", "--variant", "linear", "--dry-run", "--json"]
    for more, folder in (([], "results"), (["--out", "mine"], "mine")):
        assert main([*words, *more]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["run"] == f"{folder}/quickstart/linear/seed-1"
    assert main(["runs"]) == 66
    assert "results: no such folder of runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data-dir: /\n", "1:1: data-dir: unknown key; did you mean data_dir?"),
        ("colour: red\n", "1:1: colour: unknown key; there are data_dir, device, out"),
        ("\ndevice: gpu\n", "2:9: device: must be auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
        ("out: [a, b]\n", "1:6: out: must be text or null, got a list of 2"),
        ("data_dir: corpora\n", "1:11: data_dir: must be a whole path, such as ~/corpora, got "),
        ("data_dir: /no/such\n", "1:11: data_dir: is not a folder, got '/no/such'"),
        ("- a\n", "1:1: must be a mapping, got a list of 1"),
        ("out: {\n", "2:1: not valid YAML: "),
    ],
)
def test_mistakes_are_told_with_their_place(
    text: str, message: str, defaults: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults.write_text(text)
    assert main(["runs"]) == 78
    assert capsys.readouterr().err.startswith(f"attnkit: error: {defaults}:{message}")
    assert main(["runs", "--help"]) == 0
    capsys.readouterr()
    assert main(["doctor"]) == 78
    shown = capsys.readouterr()
    assert "attnkit[wandb]" in shown.out
    assert message in shown.err


@pytest.mark.parametrize("text", ["", "# nothing\n", "~\n", "out:\n"])
def test_an_empty_file_sets_nothing(text: str, defaults: Path) -> None:
    defaults.write_text(text)
    assert user_defaults.of_options() == {}


def test_a_file_that_cannot_be_read_is_told(defaults: Path) -> None:
    defaults.write_bytes(b"out: \xff\n")
    with pytest.raises(RecipeError, match="not UTF-8"):
        user_defaults.read()


def test_every_extra_of_the_package_is_looked_for() -> None:
    import tomllib

    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"test"}


@pytest.mark.slow
def test_the_ranks_say_where_they_are_and_how_fast_they_talk(command: Command) -> None:
    done = command("doctor", "--nproc", "2", "--format", "csv", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    rows = [row for row in csv.DictReader(io.StringIO(done.stdout)) if row["part"] == "ranks"]
    assert [row["what"] for row in rows] == ["rank 0", "rank 1", "all-reduce, gloo"]
    processes = {row["found"].split(", ")[1] for row in rows[:2]}
    assert len(processes) == 2
    assert all(", cpu, threads: " in row["found"] for row in rows[:2])
    assert float(rows[2]["found"].split(" ms for 16 MB, ")[0]) > 0
