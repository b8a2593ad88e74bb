"""Tests of metrics of plug-ins: one file with one function from lines to scores."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.cli import run_cli

from attnkit.errors import RecipeError, UsageError
from attnkit.recipe import load, mechanism_registry, metrics
from attnkit.recipe.metrics import METRICS, metric_facts
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics import Score, check_available, plugin_metrics, score

LENGTH = '''"""Difference of the lengths in characters.

An example."""

title = "length gap"
better = "lower"


def score(outputs, references):
    return [abs(len(output) - len(line[0])) for output, line in zip(outputs, references)]
'''

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Return a function that writes a plug-in, whose metrics are removed afterwards."""
    known, files = set(METRICS), dict(metrics._files)

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    yield write_file
    for name in METRICS.keys() - known:
        del METRICS[name]
    metrics._files.clear()
    metrics._files.update(files)


def test_score_is_the_mean_of_the_functions_values(write: Write) -> None:
    path = write("length_gap.py", LENGTH)
    assert mechanism_registry.plug_in(path) == "length-gap"
    facts = metric_facts("length-gap")
    assert (facts.title, facts.better) == ("length gap", "lower")
    found = score(["length-gap", "bleu"], ["a", "bcd"], [["ab"], ["b"]], EvalConfig())
    assert list(found) == ["length-gap", "bleu"]
    assert found["length-gap"].value == 1.5
    assert found["length-gap"].signature.startswith("file:length_gap.py|sha256:")
    assert found["length-gap"].statistics.tolist() == [[1, 1], [2, 1]]
    assert mechanism_registry.plugged()["length-gap"] == path


def test_recipe_may_name_a_loaded_plugin(write: Write) -> None:
    with pytest.raises(RecipeError, match="one of rouge, bleu"):
        load("quickstart", ["eval.metrics=length-gap"])
    mechanism_registry.plug_in(write("length_gap.py", LENGTH))
    recipe = load("quickstart", ["eval.metrics=bleu,length-gap"]).variants["linear"]
    assert recipe.eval.metrics == ("bleu", "length-gap")


def test_edited_file_is_imported_again(write: Write) -> None:
    """The score of the old function was saved with the hash of the new file."""
    text, found = "def score(outputs):\n    return [{} for _ in outputs]\n", list[Score]()
    for number in (1, 7):  # of the same length, within a second
        mechanism_registry.plug_in(write("own.py", text.format(number)))
        assert not any(map(plugin_metrics.current, found))
        found.append(score(["own"], ["a"], [["x"]], EvalConfig())["own"])
        assert plugin_metrics.current(found[-1])
    assert [result.value for result in found] == [1, 7]
    write("own.py", "other = 1\n")
    with pytest.raises(UsageError, match=r"own\.py:1: AttributeError: .* 'score'"):
        score(["own"], ["a"], [["x"]], EvalConfig())


def test_function_may_take_sources(write: Write) -> None:
    text = "def score(outputs, sources, by=2):\n    return [by * (outputs[0] == sources[0]), 0]"
    mechanism_registry.plug_in(write("copied.py", text))
    found = score(["copied"], ["a", "b"], [["x"], ["x"]], EvalConfig(), ["a", "c"])
    assert found["copied"].value == 1
    with pytest.raises(UsageError, match="copied needs source texts, which are not available here"):
        score(["copied"], ["a"], [["x"]], EvalConfig())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def score(outputs):\n    return [1]\n", "one finite number for each of 2 lines, not 1"),
        ("def score(outputs):\n    return [1, float('nan')]\n", "2 lines, not nan for line 2"),
        ("def score(outputs):\n    return 1 / 0\n", r"own\.py:2: ZeroDivisionError"),
        ("import no_such\ndef score(outputs):\n    pass\n", r"own\.py:1: ModuleNotFoundError"),
    ],
)
def test_error_of_a_function_has_its_line(write: Write, text: str, message: str) -> None:
    mechanism_registry.plug_in(write("own.py", text))
    with pytest.raises(UsageError, match=message):  # noqa: PT012
        check_available(["own"], EvalConfig())
        score(["own"], ["a", "b"], [["x"], ["x"]], EvalConfig())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bleu.py", LENGTH, "bleu is a metric of attnkit; rename the file"),
        ("Own.py", LENGTH, "lower-case ASCII"),
        ("own.py", "better = 'more'\ndef score(outputs): ...\n", "must be 'higher' or 'lower'"),
        ("own.py", "title = len('x')\ndef score(outputs): ...\n", "title must be a string literal"),
    ],
)
def test_invalid_plugin_raises(write: Write, name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mechanism_registry.plug_in(write(name, text))


def test_eval_of_files_by_a_plug_in(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("length_gap.py", LENGTH)
    write("h.txt", "a\n")
    write("r.txt", "abc\n")
    words = "eval --hyp h.txt --ref r.txt --metrics length-gap --plugin length_gap.py --format csv"
    result = run_cli(capsys, *words.split())
    assert "2.0" in result.out, result.err
