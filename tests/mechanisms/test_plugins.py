"""Mechanisms from outside: files by `plug_in` and `--plugin`, packages by their entry points."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attnkit import mechanisms
from attnkit.attention import Mask
from attnkit.cli import main
from attnkit.errors import AttnkitError, MissingInputError, UsageError
from attnkit.layers import MultiHead
from attnkit.recipe import mechanism_registry

MINE = '''"""Halved dot product: A = softmax(q k^T / 2).

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
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my_half.py"
    path.write_text(MINE)
    return path


def refused(path: Path, text: str) -> str:
    """The message with which a file of this text is refused."""
    path.write_text(text)
    with pytest.raises(AttnkitError) as caught:
        mechanisms.plug_in(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_plugged_file_is_a_mechanism_like_any_other(mine: Path) -> None:
    assert mechanisms.plug_in(mine) == "my-half"
    assert "my-half" in mechanisms.names()
    facts = mechanisms.facts("my-half")
    assert (facts.title, facts.formula) == ("Halved dot product", "A = softmax(q k^T / 2)")
    assert facts.source == 'Mine 2026, "Own Work", section 1.'
    assert facts.worked == "two equal keys get the weights 1/2, 1/2."
    assert facts.origin == str(mine)
    assert (facts.cost, facts.map, facts.state) == ("T*S", "exact", "growing")
    assert facts.options["divisor"].default == 2.0
    assert "attention_dropout" in facts.options
    layer = MultiHead.build("my-half", 8, 2, 10, divisor=2**0.5 * 2**0.5)
    twin = MultiHead.build("scaled-dot", 8, 2, 10)
    twin.load_state_dict(layer.state_dict())
    x, mask = torch.randn(2, 5, 8), Mask.packed(5, torch.device("cpu"), causal=True)
    torch.testing.assert_close(layer(x, mask).y, twin(x, mask).y)


def test_plugging_in_reads_the_file_and_does_not_run_it(mine: Path) -> None:
    mine.write_text(MINE + "\nraise SystemExit('it ran')\n")
    word = mechanisms.plug_in(mine)
    assert mechanisms.facts(word).causal
    with pytest.raises(SystemExit, match="it ran"):
        mechanisms.load(word)


def test_plugging_in_twice_reads_the_file_afresh(mine: Path) -> None:
    mechanisms.plug_in(mine)
    mine.write_text(MINE.replace('"T*S"', '"T*T"'))
    mechanisms.plug_in(mine)
    assert mechanisms.facts("my-half").cost == "T*T"


def test_a_mechanism_may_derive_from_another_one_of_attnkit(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(
        '"""Twice: a."""\nfrom attnkit.mechanisms.linear import LinearAttention as Base\n'
        "class Twice(Base):\n    cross = False\n"
    )
    facts = mechanisms.facts(mechanisms.plug_in(path))
    assert (facts.cross, facts.state) == (False, "constant")
    assert facts.cost == mechanisms.facts("linear").cost


def test_what_is_no_mechanism_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    assert f"{path}:1: no mechanism: the last class of the file" in refused(path, "x = 1\n")
    assert f"{path}:2: no mechanism" in refused(path, "\nclass A: pass\n")
    text = "from torch.nn import Module\nclass A(Module): pass\n"
    assert f"{path}:2: no mechanism" in refused(path, text)
    assert f"{path}:2: not valid Python" in refused(path, "x = 1\nclass A(:\n")
    assert f"{path}:1: not valid Python" in refused(path, "\0")
    message = refused(path, MINE.replace('"T*S"', "str(1)"))
    assert f"{path}:16: cost must be a literal" in message
    message = refused(path, MINE.replace('"T*S"', '"T*S"; positions = ("rope")'))
    assert f"{path}: positions must be of type tuple[str, ...], got 'rope'" in message
    message = refused(path, MINE.replace("= 2.0", "= float(2)"))
    assert f"{path}:18: divisor must be a literal" in message
    assert "mine" not in mechanisms.names()


def test_words_that_cannot_be_are_refused(mine: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"gone.py: no such file; name a Python file"):
        mechanisms.plug_in(tmp_path / "gone.py")
    for name in ("my file.py", "Mine.py", "mine.txt", "_mine.py"):
        (tmp_path / name).write_text(MINE)
        with pytest.raises(UsageError, match="lower-case ASCII letters"):
            mechanisms.plug_in(tmp_path / name)
    assert "linear is a mechanism of attnkit" in refused(tmp_path / "linear.py", MINE)
    mechanisms.plug_in(mine)
    (tmp_path / "other").mkdir()
    assert "is already loaded from" in refused(tmp_path / "other" / "my_half.py", MINE)


def test_a_file_that_fails_when_it_is_run_names_its_line(mine: Path) -> None:
    mine.write_text(MINE.replace("from attnkit.attention", "import gone\nfrom attnkit.attention"))
    word = mechanisms.plug_in(mine)
    with pytest.raises(UsageError, match=r"my_half.py:10: ModuleNotFoundError: No module named"):
        MultiHead.build(word, 8, 2, 10)


PACKAGE = {
    "atlas/__init__.py": "raise SystemExit('the package was imported')\n",
    "atlas/mine.py": MINE,
    "atlas/empty.py": "",
    "atlas-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: atlas\nVersion: 1.2\n",
    "atlas-1.2.dist-info/entry_points.txt": (
        "[attnkit.mechanisms]\nhalf = atlas.mine\nlinear = atlas.mine\nnone = atlas.empty\n"
        "lost = atlas.gone\nNo = atlas.mine\n"
    ),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with entry points, on the path."""
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


def test_packages_bring_mechanisms_by_entry_points(package: Path) -> None:
    assert "half" in mechanisms.names()
    facts = mechanisms.facts("half")
    assert (facts.origin, facts.path) == ("atlas 1.2", package / "atlas" / "mine.py")
    assert facts.options["divisor"].type is float
    assert "atlas" not in sys.modules
    (package / "atlas" / "__init__.py").write_text("")
    layer = MultiHead.build("half", 8, 2, 10, divisor=3.0)
    assert layer.mechanism.divisor == 3.0
    for name in ("atlas", "atlas.mine"):
        sys.modules.pop(name)


def test_an_entry_point_that_cannot_be_used_disturbs_nobody_else(package: Path) -> None:
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
    """A recipe that uses the mechanism of `mine`, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return path


def attnkit(*words: str | Path) -> int:
    """A command line in this process, which knows no plug-in at first."""
    mechanism_registry._plugged.clear()
    return main([str(word) for word in words])


def test_a_recipe_cannot_bring_a_plug_in_but_the_command_line_can(
    mine: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attnkit("recipe", "show", recipe, "train.steps=3") == 78
    shown = capsys.readouterr().err
    assert "no attention mechanism is called 'my-half'; add --plugin my_half.py" in shown
    assert attnkit("recipe", "show", recipe, "train.steps=3", "--plugin", mine) == 0
    assert "name: my-half\n      divisor: 3.0" in capsys.readouterr().out
    wrong = "model.attention.decoder.divisor=few"
    assert attnkit("recipe", "explain", recipe, wrong, "--plugin", mine) == 78
    assert "must be a number" in capsys.readouterr().err


def test_a_fault_of_the_plug_in_is_not_called_a_bug_of_attnkit(
    mine: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine.write_text(MINE.replace("q @ k.transpose(-1, -2) /", "q @ k /"))
    assert attnkit("train", recipe, "--plugin", mine, "--device", "cpu", "--quiet") == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert shown.splitlines()[-1].startswith(f"attnkit: error: {mine}:24: RuntimeError: ")


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*has changed since")
def test_training_scoring_and_generating_need_the_plug_in_of_the_run(
    mine: Path, recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attnkit("train", recipe, "--plugin", mine, "--device", "cpu") == 0
    run = Path("runs/r/base/seed-1")
    shown = capsys.readouterr().err
    assert f"attnkit generate {run} --plugin {mine} < input.txt" in shown
    Path("in.txt").write_text("The man sees a dog.\n")
    for words in (("eval", run), ("generate", run, "in.txt")):
        assert attnkit(*words) == 66
        assert f"{run}: was trained with the mechanism my-half: add --plugin {mine}" in (capsys.readouterr().err)
        assert attnkit(*words, "--plugin", mine) == 0
        assert "has changed" not in capsys.readouterr().err
    mine.write_text(MINE + "\n")
    assert attnkit("generate", run, "in.txt", "--plugin", mine) == 0
    assert f"{mine} has changed since this run was trained" in capsys.readouterr().err
    assert attnkit("train", recipe, "--plugin", mine) == 78
    assert f"was trained with another recipe ({mine} has changed)" in capsys.readouterr().err
