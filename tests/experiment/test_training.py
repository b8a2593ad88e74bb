"""Sessions: what becomes of a run that is there already."""

from pathlib import Path
from typing import Any

import pytest
from helpers.small import small_recipe, write_corpus

from attnkit.errors import AttnkitError, DataError, DivergedError, MissingInputError
from attnkit.experiment.training import train
from attnkit.recipe import RecipeFile
from attnkit.runs import Run
from attnkit.train.events import Event


def session(folder: Path, model: dict[str, Any] | None = None, **more: Any) -> list[Event]:
    """All events of a session of the small recipe, with settings of `train` or `model` changed."""
    options = {key: more.pop(key) for key in ("fresh", "allow_change") if key in more}
    recipe = small_recipe(write_corpus(folder), **{"steps": 5} | more)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=model or {})})
    file = RecipeFile("small", folder / "small.yaml", {"base": recipe}, None, {})
    return list(train(file, out=folder / "runs", device="cpu", **options))


def texts(events: list[Event]) -> str:
    return "\n".join(str(event) for event in events)


def files(folder: Path) -> dict[str, bytes]:
    """What a finished run is made of."""
    run = folder / "runs/small/base/seed-1"
    names = ("manifest.json", "recipe.yaml", "model.safetensors", "scores.json", "metrics.jsonl")
    return {name: (run / name).read_bytes() for name in names}


def test_a_fresh_start_without_data_leaves_the_old_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--fresh removed the run first, and then found that there was nothing to train on."""
    session(tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr(
        "attnkit.experiment.training.prepare", lambda *_, **__: _raise(MissingInputError("no data"))
    )
    with pytest.raises(MissingInputError, match="no data"):
        session(tmp_path, fresh=True)
    assert files(tmp_path) == before


def _raise(error: AttnkitError) -> None:
    raise error


def test_a_fresh_start_clears_what_is_left_of_a_run_without_manifest(tmp_path: Path) -> None:
    """It was refused with the advice to use --fresh, which it had."""
    session(tmp_path)
    (tmp_path / "runs/small/base/seed-1/manifest.json").unlink()
    session(tmp_path, fresh=True)
    assert Run.open(tmp_path / "runs/small/base/seed-1").finished


def test_a_change_that_does_not_fit_the_checkpoint_leaves_the_run_as_it_was(
    tmp_path: Path,
) -> None:
    """--allow-change stored the wider recipe and took back `finished` before it met the weights."""
    session(tmp_path)
    before = files(tmp_path)
    with pytest.raises(DataError, match="does not fit"):
        session(tmp_path, model={"width": 32}, allow_change=True)
    assert files(tmp_path) == before


def test_an_allowed_change_is_told_stored_and_followed(tmp_path: Path) -> None:
    session(tmp_path)
    told = texts(session(tmp_path, steps=7, allow_change=True))
    assert "train.steps: 5 -> 7" in told
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    assert (run.recipe.train.steps, run.manifest["finished"]["updates"]) == (7, 7)


def test_a_run_goes_on_in_the_precision_that_it_is_told(tmp_path: Path) -> None:
    """The recipe said bf16 from then on, but the updates stayed in fp32."""
    session(tmp_path)
    told = session(tmp_path, steps=7, precision="bf16", allow_change=True)
    assert "precision='bf16'" in texts(told)
    assert Run.open(tmp_path / "runs/small/base/seed-1").manifest["precision"] == "bf16"


@pytest.mark.parametrize("names", [("fixed",), ("fixed", "free", "other")])
def test_a_variant_that_names_its_precision_decides_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """What came first decided for those that say auto, without a measurement."""
    asked = []
    monkeypatch.setattr(
        "attnkit.experiment.cost.choose_precision",
        lambda *_: asked.append(1) or ("fp32", "measured"),
    )
    folder = write_corpus(tmp_path)
    kinds = {"fixed": "bf16", "free": "auto", "other": "auto"}
    made = {name: small_recipe(folder, steps=2, precision=kind) for name, kind in kinds.items()}
    file = RecipeFile("small", tmp_path / "small.yaml", made, None, {})
    for chosen in (names, tuple(kinds)):  # in one session, and in a second one
        list(train(file, out=tmp_path / "runs", device="cpu", variants=chosen))
    runs = {name: Run.open(tmp_path / f"runs/small/{name}/seed-1") for name in kinds}
    found = {name: run.manifest["precision"] for name, run in runs.items()}
    assert found == {"fixed": "bf16", "free": "fp32", "other": "fp32"}
    assert len(asked) == 1


def test_a_validation_that_is_not_finite_is_a_training_that_diverged(tmp_path: Path) -> None:
    """It ended with code 65, "its weights are damaged", when validation came before an update."""
    with pytest.raises(DivergedError, match=r"^step 1: .* in the validation; .*lower train\.lr"):
        session(tmp_path, lr=1e30, warmup=1, valid_every=1)
    run = Run.open(tmp_path / "runs/small/base/seed-1")
    assert "in the validation" in run.manifest["failed"]
    session(tmp_path, lr=1e-3, allow_change=True, fresh=True)
    assert Run.open(run.path).manifest["failed"] is None


def test_a_run_knows_the_variants_of_its_recipe(tmp_path: Path) -> None:
    session(tmp_path)
    assert Run.open(tmp_path / "runs/small/base/seed-1").manifest["variants"] == ["base"]
