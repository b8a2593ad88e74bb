"""Tests of mechanisms from outside: files by `plug_in` and `--plugin`, packages by entry points."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.tensors import packed

from attnkit import mechanisms
from attnkit.cli import main
from attnkit.errors import MissingInputError, UsageError
from attnkit.layers import MultiHead
from attnkit.recipe import mechanism_registry

HALVED = '''"""Halved dot product: A = softmax(q k^T / 2).

Source: Mine 2026, "Own Work", section 1.

Worked number: two equal keys get the weights 1/2, 1/2.
"""

from typing import ClassVar

from attnkit.attention import Scored


class Halved(Scored):
    """softmax(q k^T / divisor) v."""

    cost: ClassVar[str] = "T*S"

    def __init__(self, shape, *, divisor: float = 2.0) -> None:
        super().__init__(shape)
        self.divisor = divisor

    def scores(self, q, k, mask):
        """q k^T / divisor."""
        return q @ k.transpose(-1, -2) / self.divisor
'''


@pytest.fixture(autouse=True)
def _unplug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism_registry, "_plugged", {})


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "my_half.py"
    path.write_text(HALVED)
    return path


def plug_in_error(path: Path, text: str) -> str:
    """Return the message of the error when a file of this text is plugged in."""
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        mechanisms.plug_in(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_plugged_file_is_a_mechanism_like_any_other(plugin: Path) -> None:
    assert mechanisms.plug_in(plugin) == "my-half"
    assert "my-half" in mechanisms.names()
    facts = mechanisms.facts("my-half")
    assert (facts.title, facts.formula) == ("Halved dot product", "A = softmax(q k^T / 2)")
    assert facts.source == 'Mine 2026, "Own Work", section 1.'
    assert facts.worked == "two equal keys get the weights 1/2, 1/2."
    assert facts.origin == str(plugin)
    assert (facts.cost, facts.map, facts.state) == ("T*S", "exact", "growing")
    assert facts.options["divisor"].default == 2.0
    assert "attention_dropout" in facts.options
    layer = MultiHead.build("my-half", 8, 2, 10, divisor=2**0.5 * 2**0.5)
    scaled_dot = MultiHead.build("scaled-dot", 8, 2, 10)
    scaled_dot.load_state_dict(layer.state_dict())
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x, packed(5)).y, scaled_dot(x, packed(5)).y)


def test_plugging_in_reads_the_file_and_does_not_run_it(plugin: Path) -> None:
    plugin.write_text(HALVED + "\nraise SystemExit('it ran')\n")
    word = mechanisms.plug_in(plugin)
    assert mechanisms.facts(word).causal
    with pytest.raises(SystemExit, match="it ran"):
        mechanisms.load(word)


def test_plugging_in_again_reads_the_file_again(plugin: Path) -> None:
    mechanisms.plug_in(plugin)
    plugin.write_text(HALVED.replace('"T*S"', '"T*T"'))
    mechanisms.plug_in(plugin)
    assert mechanisms.facts("my-half").cost == "T*T"


def test_plugin_can_derive_from_a_mechanism_of_attnkit(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(
        '"""Twice: a."""\nfrom attnkit.mechanisms.linear import LinearAttention as Base\n'
        "class Twice(Base):\n    cross = False\n"
    )
    facts = mechanisms.facts(mechanisms.plug_in(path))
    assert (facts.cross, facts.state) == (False, "constant")
    assert facts.cost == mechanisms.facts("linear").cost


def test_invalid_plugin_raises_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    for text, message in (
        ("x = 1\n", ":1: no mechanism: the last class of the file"),
        ("\nclass A: pass\n", ":2: no mechanism"),
        ("from torch.nn import Module\nclass A(Module): pass\n", ":2: no mechanism"),
        ("x = 1\nclass A(:\n", ":2: not valid Python"),
        ("\0", ":1: not valid Python"),
        (HALVED.replace('"T*S"', "str(1)"), ":16: cost must be a literal"),
        (HALVED.replace('"T*S"', "''; positions = 'rope'"), ": positions must be of type tuple[str, ...], got 'rope'"),
        (HALVED.replace("= 2.0", "= float(2)"), ":18: divisor must be a literal"),
    ):
        assert f"{path}{message}" in plug_in_error(path, text)
    assert "mine" not in mechanisms.names()


def test_invalid_file_name_raises(plugin: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"gone.py: no such file; name a Python file"):
        mechanisms.plug_in(tmp_path / "gone.py")
    for name in ("my file.py", "Mine.py", "mine.txt", "_mine.py"):
        assert "lower-case ASCII letters" in plug_in_error(tmp_path / name, HALVED)
    assert "linear is a mechanism of attnkit" in plug_in_error(tmp_path / "linear.py", HALVED)
    mechanisms.plug_in(plugin)
    (tmp_path / "other").mkdir()
    assert "is already loaded from" in plug_in_error(tmp_path / "other" / "my_half.py", HALVED)


def test_error_of_a_plugin_names_its_line(plugin: Path) -> None:
    plugin.write_text(HALVED.replace("from attnkit.attention", "import gone\nfrom attnkit.attention"))
    word = mechanisms.plug_in(plugin)
    with pytest.raises(UsageError, match=r"my_half.py:10: ModuleNotFoundError: No module named"):
        MultiHead.build(word, 8, 2, 10)


PACKAGE = {
    "atlas/__init__.py": "raise SystemExit('the package was imported')\n",
    "atlas/mine.py": HALVED,
    "atlas/empty.py": "",
    "atlas-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: atlas\nVersion: 1.2\n",
    "atlas-1.2.dist-info/entry_points.txt": (
        "[attnkit.mechanisms]\nhalf = atlas.mine\nlinear = atlas.mine\nnone = atlas.empty\n"
        "lost = atlas.gone\nNo = atlas.mine\n"
    ),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with entry points; return its path."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for cached in (mechanism_registry.installed, mechanisms.faults):
        cached.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    for cached in (mechanism_registry.installed, mechanisms.faults):
        cached.cache_clear()


def test_packages_add_mechanisms_by_entry_points(package: Path) -> None:
    assert "half" in mechanisms.names()
    facts = mechanisms.facts("half")
    assert (facts.origin, facts.path) == ("atlas 1.2", package / "atlas" / "mine.py")
    assert facts.options["divisor"].type is float
    assert "atlas" not in sys.modules
    (package / "atlas" / "__init__.py").write_text("")
    assert MultiHead.build("half", 8, 2, 10, divisor=3.0).mechanism.divisor == 3.0
    for name in ("atlas", "atlas.mine"):
        sys.modules.pop(name)


def test_invalid_entry_point_affects_nothing_else(package: Path) -> None:
    assert set(mechanisms.faults()) == {"linear", "none", "lost", "No"}
    assert not {"none", "lost", "No"} & set(mechanisms.names())
    assert mechanisms.facts("linear").origin == "attnkit"
    with pytest.raises(UsageError, match=r"package atlas 1.2: .*empty.py:1: no mechanism"):
        mechanisms.facts("none")
    with pytest.raises(UsageError, match="module atlas.gone has no Python file"):
        mechanisms.facts("lost")


RECIPE = """task: translation
data: {corpus: toy-translation, size: 60, max_length: 64}
tokenizer: {size: 120}
model: {width: 16, ff: 16, layers: 1, heads: 2, attention: {decoder: {name: my-half, divisor: 3}}}
train: {steps: 2, batch_tokens: 256, precision: fp32}
eval: {bootstrap: 10}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a recipe that uses the plugin into the current folder; return its path."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return path


def attnkit(*words: str | Path) -> int:
    """Run a command in this process without the plugins of earlier commands; return its exit code."""
    mechanism_registry._plugged.clear()
    return main([str(word) for word in words])


def test_only_the_command_line_can_name_a_plugin(
    plugin: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attnkit("recipe", "show", recipe, "train.steps=3") == 78
    assert "no attention mechanism is called 'my-half'; add --plugin my_half.py" in capsys.readouterr().err
    assert attnkit("recipe", "show", recipe, "train.steps=3", "--plugin", plugin) == 0
    assert "name: my-half\n      divisor: 3.0" in capsys.readouterr().out
    wrong = "model.attention.decoder.divisor=few"
    assert attnkit("recipe", "explain", recipe, wrong, "--plugin", plugin) == 78
    assert "must be a number" in capsys.readouterr().err


def test_error_of_a_plugin_is_not_called_a_bug_of_attnkit(
    plugin: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin.write_text(HALVED.replace("q @ k.transpose(-1, -2) /", "q @ k /"))
    assert attnkit("train", recipe, "--plugin", plugin, "--device", "cpu", "--quiet") == 1
    stderr = capsys.readouterr().err
    assert "Traceback" in stderr
    assert stderr.splitlines()[-1].startswith(f"attnkit: error: {plugin}:24: RuntimeError: ")


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*has changed since")
def test_run_with_a_plugin_needs_the_same_plugin(
    plugin: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attnkit("train", recipe, "--plugin", plugin, "--device", "cpu") == 0
    run = Path("runs/r/base/seed-1")
    assert f"attnkit generate {run} --plugin {plugin} < input.txt" in capsys.readouterr().err
    Path("in.txt").write_text("The man sees a dog.\n")
    for words in (("eval", run), ("generate", run, "in.txt")):
        assert attnkit(*words) == 66
        assert f"{run}: was trained with the mechanism my-half: add --plugin {plugin}" in capsys.readouterr().err
        assert attnkit(*words, "--plugin", plugin) == 0
        assert "has changed" not in capsys.readouterr().err
    plugin.write_text(HALVED + "\n")
    assert attnkit("generate", run, "in.txt", "--plugin", plugin) == 0
    assert f"{plugin} has changed since this run was trained" in capsys.readouterr().err
    assert attnkit("train", recipe, "--plugin", plugin) == 78
    assert f"was trained with another recipe ({plugin} has changed)" in capsys.readouterr().err
