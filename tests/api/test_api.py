"""Tests of the Python API: models, maps, training, comparisons; its documentation page and notebook."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import pretrained
from helpers.shell import environment

import attnkit
from attnkit.api import comparing
from attnkit.errors import AttnkitError, MissingInputError, RecipeError, UnavailableError, UsageError
from attnkit.runs import Run
from attnkit.storage.files import sha256_file

DOCS = Path(__file__).parents[2] / "docs"
SENTENCE, OUTPUT = "The poor woman stole the letters.", "Die arme Frau hat die Briefe gestohlen."
TINY = {
    "train.steps": 2,
    "data.size": 200,
    "tokenizer.size": 200,
    "model.width": 16,
    "model.ff": 16,
    "model.layers": 1,
    "train.valid_every": 0,
    "train.precision": "fp32",
    "search.max_length": 3,
    "eval.bootstrap": 10,
}


@pytest.fixture(scope="module")
def demo() -> Any:
    return attnkit.load("demo", device="cpu")


def test_import_is_fast_and_imports_no_torch() -> None:
    code = (
        "import sys, time; start = time.process_time(); import attnkit\n"
        "print(time.process_time() - start, *({'torch', 'numpy', 'pydantic'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    seconds, *heavy = done.stdout.split()
    assert float(seconds) < 0.2
    assert heavy == []


def test_demo_translates_and_is_small(demo: Any) -> None:
    assert demo.generate(SENTENCE) == [OUTPUT]
    assert demo.generate(["", SENTENCE], beam=np.int64(2)) == ["", OUTPUT]
    shipped = Path(attnkit.__file__).parent / "_demo"
    files = list(shipped.iterdir())
    assert sum(path.stat().st_size for path in files) <= 2_000_000
    recorded = json.loads((shipped / "manifest.json").read_text())["files"]
    assert {path.name: sha256_file(path) for path in files if path.name in recorded} == recorded
    assert (demo.run.variant, demo.run.manifest.recipe) == ("random+vanilla", "quickstart")


def test_attention_has_maps_and_tokens_by_kind(demo: Any, tmp_path: Path) -> None:
    found = demo.attention(SENTENCE)
    assert found.output == OUTPUT
    assert set(found.maps) == {"encoder", "decoder", "cross"}
    for kind, weights in found.maps.items():
        queries, keys = found.tokens[kind]
        assert weights[0, 1].shape == (len(queries), len(keys))
        assert np.allclose(weights.sum(-1), 1, atol=1e-3) or kind != "cross"
    assert found.tokens["cross"].queries[-1] == "</s>"
    assert demo.attention(SENTENCE, "Die Frau").maps["cross"].shape[2] == 3
    assert "<iframe srcdoc=" in found._repr_html_()
    found.words().save(tmp_path / "maps.npz")
    found.save(tmp_path / "maps.html")
    assert b"<!doctype html>" in (tmp_path / "maps.html").read_bytes()[:20].lower()
    assert np.load(tmp_path / "maps.npz")["cross"].shape[3] == 7


def test_hugging_face_folder(tmp_path: Path) -> None:
    model = attnkit.load(pretrained.save_pretrained(tmp_path, "llama"), offline=True)
    assert len(model.generate(["a small river", ""], max_length=2)) == 2
    assert list(model.attention("a small river").maps) == ["decoder"]
    answer = attnkit.contexts(model, ["a river", "a mill"], "where", max_length=3)
    assert answer.source in (None, 0, 1)  # None: neither leads


VARIANTS: Any = {"plain": {}, "linear": {"model.attention": "linear"}}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Train two variants and return the comparison and the folder of the runs."""
    out = tmp_path_factory.mktemp("api")
    return attnkit.train("quickstart", TINY, variants=VARIANTS, name="two", out=out, progress=False), out


def test_train_returns_rows_and_differences(compared: tuple[Any, Path]) -> None:
    found, out = compared
    assert [row.variant for row in found.rows] == ["plain", "linear"]
    assert {difference.metric for difference in found.differences} == {"bleu", "exact-match"}
    assert found.baseline == "plain"
    assert found.json()["rows"][0]["recipe"] == "two"
    assert "BLEU" in str(found)
    assert "<table>" in found._repr_html_()
    assert (out / "two.yaml").read_text().startswith("extends: ")
    model = attnkit.load(out / "two" / "linear" / "seed-1")
    assert len(model.generate(["a", "b"])) == 2


def test_settings_may_be_numpy_numbers(compared: tuple[Any, Path]) -> None:
    """They give the runs trained with numbers of Python."""
    found, out = compared
    settings = TINY | {"train.steps": np.int64(TINY["train.steps"])}
    again = attnkit.train("quickstart", settings, variants=VARIANTS, name="two", out=out, progress=False)
    assert [row.weights for row in again.rows] == [row.weights for row in found.rows]


def test_curves_as_text_and_pictures(compared: tuple[Any, Path], tmp_path: Path) -> None:
    curves = compared[0].curves("training-loss")
    assert [series.name for chart in curves.curves for series in chart.series] == ["plain", "linear"]
    assert "training" in str(curves)
    with pytest.raises(UsageError, match="x 'tme': did you mean time"):
        compared[0].curves("training-loss", x="tme")
    assert "<svg" in curves._repr_svg_()
    curves.save(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_with_other_metrics(compared: tuple[Any, Path]) -> None:
    _, out = compared
    found = attnkit.evaluate(out / "two", metrics=["chrf"], baseline="linear")
    assert [[*row.scores] for row in found.rows] == [["chrf"], ["chrf"]]
    assert found.baseline == "linear"
    with pytest.raises(UsageError, match="no run is of this variant; choose from linear, plain"):
        attnkit.evaluate(out / "two", baseline="performer")


def test_to_pandas(compared: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Pandas:
        DataFrame = list

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    rows = compared[0].to_pandas()
    assert [row["system"] for row in rows] == ["plain", "linear"]
    assert {"bleu", "exact-match", "seed", "parameters", "run"} <= {*rows[0]}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnavailableError, match="pip install pandas"):
        compared[0].to_pandas()


def test_errors_of_a_dict_have_places_in_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    recipe = {"task": "translation", "data": {"train": "a.csv"}, "train": {"lr": "fast"}}
    with pytest.raises(RecipeError, match=r"mine\.yaml:5:7: train\.lr: must be a number"):
        attnkit.train(recipe, out="runs", name="mine")
    with pytest.raises(UsageError, match="name='mine' is for a dict"):
        attnkit.train("quickstart", name="mine")
    assert str(tmp_path / "a.csv") in (tmp_path / "runs" / "mine.yaml").read_text()


def test_paths_in_a_dict_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of dotted keys, of variants, and below the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("a.csv", "b.model", "home/c.csv", "first/model", "base.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    recipe: Any = {
        "extends": "base.yaml",
        "data": {"train": ["a.csv", "hf:o/n"], "valid": "hf:o/n:de"},
        "data.test": "~/c.csv",
        "tokenizer": {"model": "b.model", "size": 300},
        "variants": {"own": {"data.train": "a.csv", "train": {"init": "first"}}, "dot": None},
    }
    assert comparing._absolute(recipe) == {
        "extends": f"{tmp_path}/base.yaml",
        "data": {"train": [f"{tmp_path}/a.csv", "hf:o/n"], "valid": "hf:o/n:de"},
        "data.test": f"{tmp_path}/home/c.csv",
        "tokenizer": {"model": f"{tmp_path}/b.model", "size": 300},
        "variants": {"own": {"data.train": f"{tmp_path}/a.csv", "train": {"init": f"{tmp_path}/first"}}, "dot": None},
    }
    assert comparing._absolute({"extends": "quickstart"}) == {"extends": "quickstart"}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.generate("x", beem=2), UsageError, "no option beem; choose from sample"),
        (lambda m: m.generate("x", top_p=0.5), UsageError, "for sampling: add --sample"),
        (lambda m: m.generate("x", beam=0), UsageError, "beam: must be a whole number >= 1"),
        (lambda m: m.attention(" "), UsageError, "empty"),
        (lambda m: attnkit.contexts(m, "a text", "b"), UsageError, "a list of texts"),
        (lambda m: attnkit.load("demo", plugins=["no.py"]), MissingInputError, "no such file"),
        (lambda m: attnkit.train("quickstart", "a=1"), UsageError, "a list or a dict"),
        (lambda m: attnkit.train("quickstart", variants=["none"]), UsageError, "choose from scaled"),
        (lambda m: attnkit.train("quickstart", variants="none"), UsageError, "variant 'none'"),
        (lambda m: attnkit.load("demo", plugins="no.py"), MissingInputError, r"no\.py: no such"),
        (lambda m: attnkit.evaluate("demo", metrics="bleux"), UsageError, "'bleux'"),
        (lambda m: m.generate([None]), UsageError, "texts must be text, not None"),
        (lambda m: m.generate(None), UsageError, "texts must be text, not None"),
        (lambda m: m.attention(None), UsageError, "the text must be text, not None"),
        (lambda m: attnkit.contexts(m, [None], "b"), UsageError, "contexts must be text"),
        (lambda m: attnkit.contexts(m, ["a"], None), UsageError, "the prompt must be text"),
        (lambda m: m.attention("A king", "Ein").save("x.foo"), UsageError, r"choose from \.html, \.npz, \.csv"),
        (lambda m: attnkit.evaluate("nowhere"), MissingInputError, "nowhere"),
    ],
)
def test_invalid_arguments_raise(demo: Any, call: Any, error: type[AttnkitError], message: str) -> None:
    with pytest.raises(error, match=message):
        call(demo)


def test_folder_named_demo_precedes_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Run.open("demo").variant == "random+vanilla"
    (tmp_path / "demo").mkdir()
    with pytest.raises(MissingInputError, match="not a run"):
        Run.open("demo")


@pytest.mark.parametrize("method", ["generate", "attention"])
def test_unknown_words_warn(demo: Any, method: str) -> None:
    with pytest.warns(UserWarning, match="such as 'zebra', are not in the vocabulary") as caught:
        getattr(demo, method)("A zebra crosses the quantum highway.")
    assert [warning.filename for warning in caught] == [__file__]


PARALLEL = f"""\
attnkit.train("quickstart", {TINY!r}, variants="linear", seeds=[1, 2], jobs=2, out="both")
"""
"""Not guarded by `if __name__`: each process ran the script again."""
PACKAGE_AND_FUNCTION = """\
import inspect
import attnkit, attnkit.train.fit
from attnkit.train import events
try:
    attnkit.train("no")
except attnkit.errors.MissingInputError as error:
    assert "no recipe 'no'" in str(error)
else:
    raise AssertionError("attnkit.train is not a function")
assert inspect.signature(attnkit.train) == inspect.signature(attnkit.api.train)
assert attnkit.train.__doc__.startswith("Train, score and compare")
assert callable(attnkit.nbce.merge)
assert "scaled-dot" in attnkit.mechanisms.names()
"""


@pytest.mark.slow
def test_notebook_and_page_run_as_one_program(tmp_path: Path) -> None:
    notebook = json.loads((DOCS / "tour.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert all(not c.get("outputs") for c in notebook["cells"])
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    blocks = []
    for before, block in re.findall(r"([^\n]*)\n\n```python\n(.*?)```", text, re.DOTALL):
        if block.startswith('"""'):
            name = re.findall(r"`(\w+\.py)`", before)[-1]
            (tmp_path / name).write_text(block, encoding="utf-8")
        else:
            blocks.append(block)
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    blocks += re.findall("```py\n(.*?)```", readme, re.DOTALL)
    assert len(blocks) == 8
    program = "\n".join((PACKAGE_AND_FUNCTION, *cells, *blocks, PARALLEL))
    program = re.sub(r"^small = .*", f"small = {TINY!r}", program, flags=re.MULTILINE)
    (tmp_path / "all.py").write_text(program, encoding="utf-8")
    env = environment(ATTNKIT_CACHE=os.environ["ATTNKIT_CACHE"])
    command = [sys.executable, "all.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both" / "quickstart" / "linear" / "seed-2" / "scores.json").is_file()
