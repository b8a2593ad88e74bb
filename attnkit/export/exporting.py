"""Export of a run to a folder, which appears only after its outputs agree with the run."""

import importlib
import os
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import attnkit
from attnkit.data.rows import Row
from attnkit.data.text_form import clean
from attnkit.errors import DataError, MissingInputError, OutputPathError, UnavailableError
from attnkit.export.card import card
from attnkit.export.parity import LINES, Agreement, Reader, compare
from attnkit.recipe import dump
from attnkit.recipe.build import with_paths
from attnkit.runs import Run
from attnkit.runs.layout import is_inside
from attnkit.runs.run_corpus import RunCorpus
from attnkit.storage import files
from attnkit.storage.cache import fill_folder

PACKAGES = {
    "huggingface": ("transformers",),
    "ctranslate2": ("ctranslate2",),
    "onnx": ("onnxruntime", "onnxscript", "onnx"),
}
"""Required packages by target; the first package reads the exported folder."""
VALID = "valid"
"""Split on which outputs are compared; if it is missing, a split that the recipe evaluates."""


def check(target: str, folder: Path | None = None) -> None:
    """Raise UnavailableError if a package of the target is missing, OutputPathError if the folder is not empty."""
    if target == "huggingface":
        from attnkit.huggingface.opening import require_transformers

        require_transformers()
    for package in PACKAGES[target]:
        if find_spec(package) is None:
            raise UnavailableError(f"{package} is not installed: pip install 'attnkit[{target}]'")
    if folder is not None and os.path.lexists(folder):
        with files.writing(folder):
            if folder.is_symlink() or not folder.is_dir() or any(folder.iterdir()):
                raise OutputPathError(f"{folder}: already exists; choose another folder, or remove this one")


def export(
    run: Run,
    target: str,
    folder: Path,
    weights: str | None = None,
    data_dir: Path | None = None,
    offline: bool = False,
) -> list[Agreement]:
    """Export a run and return the comparison, which is also written to the folder.

    `weights` is a quantization type of CTranslate2; None: no quantization.

    Raises:
        UnavailableError, OutputPathError: See `check`.
        DataError: Outputs differ, in which case there is no folder; or the run is damaged.
        MissingInputError: No lines are available for comparison, or training is not finished.
    """
    check(target, folder)
    if is_inside(folder, run.path):
        raise OutputPathError(f"{folder}: is inside the run; choose a folder outside")
    recipe, model, tokenizer = run.recipe, run.model(), run.tokenizer()
    (split, rows), checks = _rows(run, data_dir, offline), list[Agreement]()
    # the function `write` of each target fills an empty folder, and returns a reader of it
    write = importlib.import_module(f"attnkit.export.to_{target}").write

    def build(draft: Path) -> None:
        reader: Reader = write(model, tokenizer, recipe, draft, weights)
        checks.extend(compare(model, tokenizer, recipe, reader, rows))
        if failed := [check for check in checks if not check.passed]:
            text = "; ".join(f"{check.check}: {check.found} ({check.needed})" for check in failed)
            raise DataError(f"{run.path}: not exported, because the exported model differs: {text}")
        facts: dict[str, Any] = {
            "attnkit": attnkit.__version__,
            "to": target,
            "quantization": weights,
            "library": f"{PACKAGES[target][0]} {version(PACKAGES[target][0])}",
            "recipe": run.name,
            "variant": run.variant,
            "seed": run.seed,
            "weights": run.weights_sha256,
            "split": split,
            "checks": [check._asdict() for check in checks],
        }
        # without the paths of the machine on which it was trained
        without_paths = with_paths(recipe, lambda key, path: None)
        about = {"recipe": run.name, "variant": run.variant, "seed": str(run.seed)}
        for name, text in {
            "export.json": files.json_text(facts),
            "README.md": card(run, facts),
            "recipe.yaml": dump(without_paths, about),
        }.items():
            (draft / name).write_text(text, encoding="utf-8")

    files.make_folder(folder.parent)
    fill_folder(folder, build)
    return checks


def _rows(run: Run, data_dir: Path | None, offline: bool) -> tuple[str, list[Row]]:
    """Return the name of a split, and its first lines with text."""
    corpus = RunCorpus(run, data_dir, offline)
    missing: Exception = MissingInputError(f"{run.path}: no lines with text to compare outputs on")
    for split in (VALID, *run.recipe.eval.splits):
        try:
            lines = (row for row in corpus.rows(split) if clean(row.source or row.target))
            if rows := list(islice(lines, LINES)):
                return split, rows
        except (MissingInputError, UnavailableError) as error:
            missing = error
    raise missing
