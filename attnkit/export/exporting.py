"""A run as a folder for another library: written, compared with the run, and only then named."""

from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import attnkit
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer
from attnkit.errors import DataError, MissingInputError, OutputPathError, UnavailableError
from attnkit.export.card import card
from attnkit.export.parity import LINES, Check, Reader, compare, outputs
from attnkit.models import Model, Transformer
from attnkit.recipe import dump
from attnkit.runs import Run
from attnkit.runs.results import json_text
from attnkit.runs.run_corpus import RunCorpus
from attnkit.storage import files
from attnkit.storage.cache import fill_folder

PACKAGES = {
    "huggingface": ("transformers",),
    "ctranslate2": ("ctranslate2",),
    "onnx": ("onnxruntime", "onnxscript", "onnx"),
}
"""Target -> what it needs; the first one reads the result, and its version is noted."""
EXTRAS = {"huggingface": "hf"}
"""Target -> the extra of its packages, where that has another name."""
REPORT, RECIPE, CARD = "export.json", "recipe.yaml", "README.md"
VALID = "valid"
"""The split that answers are compared on; where it is not at hand, one that is scored."""


@dataclass(frozen=True)
class Export:
    """What to export where."""

    run: Run
    target: str
    folder: Path
    quantization: str | None = None
    """Of CTranslate2: int8, int16, float16 or bfloat16 weights; None: as they are."""
    data_dir: Path | None = None
    offline: bool = False


def check_installed(target: str) -> None:
    """Refuse a target whose library is not there.  Raises UnavailableError."""
    if target == "huggingface":
        from attnkit.huggingface.opening import require_transformers

        require_transformers()
    extra = EXTRAS.get(target, target)
    for package in PACKAGES[target]:
        if find_spec(package) is None:
            raise UnavailableError(
                f"{target} needs {package}, which is not installed: pip install 'attnkit[{extra}]'"
            )


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something.  Raises OutputPathError."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputPathError(f"{folder}: exists and is not a folder; choose another name")
    with files.writing(folder):
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputPathError(f"{folder}: is not empty; choose another folder, or remove it")


def export(settings: Export) -> list[Check]:
    """Export a run; the comparison that is also written into the folder.

    Raises:
        UnavailableError, OutputPathError: as `check_installed` and `check_folder`.
        DataError: answers differ, and there is no folder; or the run is damaged.
        MissingInputError: no lines to compare are at hand, or training is not finished.
    """
    check_installed(settings.target)
    check_folder(settings.folder)
    run = settings.run
    recipe, model, tokenizer = run.recipe, run.model(), run.tokenizer()
    split, rows = _rows(settings)
    checks: list[Check] = []

    def build(folder: Path) -> None:
        reader = _written(settings, model, tokenizer, folder)
        checks.extend(compare(model, tokenizer, recipe, reader, rows))
        if failed := [check for check in checks if not check.passed]:
            text = "; ".join(f"{check.name}: {check.found} ({check.needed})" for check in failed)
            raise DataError(f"{run.path}: not exported, since it would answer otherwise: {text}")
        facts = _facts(settings, split, checks)
        texts = {REPORT: json_text(facts), RECIPE: _recipe_text(run), CARD: card(run, facts)}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")

    files.make_folder(settings.folder.parent)
    fill_folder(settings.folder, build)
    return checks


def _rows(settings: Export) -> tuple[str, list[Row]]:
    """The lines that answers are compared on, with text, and the name of their split."""
    corpus = RunCorpus(settings.run, settings.data_dir, settings.offline, keep=False)
    for split in (VALID, *settings.run.recipe.eval.splits):
        try:
            lines = (row for row in corpus.rows(split) if (row.source or row.target).split())
            if rows := list(islice(lines, LINES)):
                return split, rows
        except MissingInputError as error:
            missing = error
    raise missing


def _written(settings: Export, model: Model, tokenizer: Tokenizer, folder: Path) -> Reader:
    """Fill the folder, and open it as its users do."""
    recipe = settings.run.recipe
    if settings.target == "huggingface":
        from attnkit.export import to_huggingface

        assert isinstance(model, Transformer)
        to_huggingface.write(model, tokenizer, recipe, folder)
        opened = to_huggingface.HuggingFaceModel(folder, recipe, len(tokenizer.target))
        return Reader(opened.translate, logits=opened.logits, encode=opened.encode)
    tokenizer.save(folder)
    if settings.target == "ctranslate2":
        from attnkit.export import to_ctranslate2

        assert isinstance(model, Transformer)
        to_ctranslate2.write(model, tokenizer, recipe, folder, settings.quantization)
        engine = to_ctranslate2.CTranslate2Model(folder, tokenizer, model.limit, "cpu")
        answer = partial(outputs, engine, tokenizer, recipe)
        return Reader(answer, log_probs=engine.log_probs, exact=settings.quantization is None)
    from attnkit.export import to_onnx

    to_onnx.write(model, recipe.model.width, max(2, recipe.data.max_length), folder)
    graphs = to_onnx.OnnxModel(folder, model)
    return Reader(
        None if recipe.masks else partial(outputs, graphs, tokenizer, recipe), logits=graphs
    )


def _facts(settings: Export, split: str, checks: list[Check]) -> dict[str, Any]:
    """What export.json says."""
    run, library = settings.run, PACKAGES[settings.target][0]
    return {
        "attnkit": attnkit.__version__,
        "to": settings.target,
        "library": f"{library} {version(library)}",
        "quantization": settings.quantization,
        "recipe": run.name,
        "variant": run.variant,
        "seed": run.seed,
        "weights": run.check_weights(),
        "split": split,
        "checks": [check._asdict() for check in checks],
    }


def _recipe_text(run: Run) -> str:
    """The recipe without the places of files on the machine where it was trained."""
    recipe = run.recipe
    parts = {
        "data": recipe.data.model_copy(update=dict.fromkeys(("train", "valid", "test"))),
        "tokenizer": recipe.tokenizer.model_copy(update={"model": None}),
        "train": recipe.train.model_copy(update={"init": None}),
        "eval": recipe.eval.model_copy(update={"vectors": None}),
    }
    about = {"recipe": run.name, "variant": run.variant, "seed": str(run.seed)}
    return dump(recipe.model_copy(update=parts), about)
