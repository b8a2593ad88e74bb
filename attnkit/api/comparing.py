"""Training of recipes, evaluation of runs, and their comparison."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attnkit import models
from attnkit.api.calls import Plugins, name_list, plug_in
from attnkit.api.curves import DrawnCurves
from attnkit.api.progress import plain_text, show_progress
from attnkit.errors import RecipeError, UnavailableError, UsageError
from attnkit.experiment import training
from attnkit.experiment.settings import TrainingSettings
from attnkit.nbce.question_sets import evaluate_run
from attnkit.recipe import build, resolve
from attnkit.recipe import load as load_recipe
from attnkit.recipe.find import is_name
from attnkit.recipe.issues import COMMAND_LINE
from attnkit.runs import Run, find_runs, one_task
from attnkit.runs.curves import learning_curves
from attnkit.runs.find import baselines
from attnkit.scoring import Comparison, ScoreRow, expand, side_by_side
from attnkit.scoring.results import PublishedFigures
from attnkit.show.comparison_tables import tables
from attnkit.show.table_formats import html_text
from attnkit.storage.files import make_folder, write_output

Overrides = Mapping[str, Any] | Sequence[str]
Variants = Mapping[str, Mapping[str, Any]]
STYLE = """<style>
.attnkit table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.attnkit th, .attnkit td { padding: 3px 10px; text-align: right; }
.attnkit .left { text-align: left; }
.attnkit .dim, .attnkit .note { opacity: 0.65; }
.attnkit .note { font-size: 0.85em; margin: 2px 0; }
</style>"""
"""CSS of tables in a notebook; colors are the notebook's."""


@dataclass(frozen=True)
class ComparedRuns(Comparison):
    """Comparison of systems: `rows` of scores, `differences` from the baseline, `best`; notebooks show it as a table.

    `json()` is the output of `attnkit eval --format json`.
    """

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame with one column per metric; raises UnavailableError without pandas."""
        try:
            import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            raise UnavailableError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame([_record(row) for row in self.rows])

    def curves(self, *names: str, x: str | None = None) -> DrawnCurves:
        """Return learning curves of the runs.

        Args:
            names: curves such as training-loss or learning-rate; default: the training loss and all validated values.
            x: updates, tokens or time; or a recipe key in which variants differ, such as train.lr.
        """
        runs = [Run.open(path) for path in dict.fromkeys(row.run for row in self.rows) if path]
        return DrawnCurves(learning_curves(runs, list(names), x, note=warnings.warn))

    def __str__(self) -> str:
        return plain_text(*tables(self))

    def __repr__(self) -> str:
        return f"<comparison of {len(self.rows)} rows, baseline {self.baseline}>"

    def _repr_html_(self) -> str:
        body = "".join(map(html_text, tables(self)))
        return f'{STYLE}<div class="attnkit">{body}</div>'


def _record(row: ScoreRow) -> dict[str, Any]:
    """Convert a row to a dict, without the axes that it does not have."""
    axes = {"length": row.length, "method": row.method, "contexts": row.contexts}
    return {
        "recipe": row.recipe,
        "system": row.name or row.variant,
        "variant": row.variant,
        "seed": row.seed,
        "split": row.split,
        **{name: value for name, value in axes.items() if value is not None},
        **{name: score.value for name, score in row.scores.items()},
        "sentences": row.sentences,
        "parameters": row.system.parameters,
        "train_seconds": row.system.cost.seconds,
        "run": row.run,
    }


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    variants: str | Sequence[str] | Variants | None = None,
    seeds: Sequence[int] | None = None,
    name: str | None = None,
    out: str | Path = "runs",
    jobs: int = 1,
    fresh: bool = False,
    allow_change: bool = False,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    plugins: Plugins = (),
    progress: bool = True,
) -> ComparedRuns:
    """Train, score and compare all variants of a recipe with all seeds.

    Finished runs are kept and interrupted runs resume, as with `attnkit train`.

    Args:
        recipe: name of a shipped recipe, a recipe file, or a dict of recipe keys, which is written to OUT/NAME.yaml.
        overrides: list of KEY=VALUE strings, or a dict of dotted keys: {"train.steps": 200}.
        variants: name or names of the variants to train; or a dict of new variants with their overrides, which
            replaces the recipe's variants and is written to OUT/NAME.yaml.
        seeds: seeds in place of the recipe's.
        name: name of a recipe that is written to OUT; default "own".
        out: root folder of the runs.
        jobs: number of runs trained at the same time, each in a separate process.
        fresh, allow_change: replace existing runs; resume runs whose recipe has changed.
        device, data_dir, offline: see `attnkit train`.
        plugins: Python files with custom mechanisms or metrics.

    Raises:
        RecipeError: The recipe is invalid.
        UsageError: `name` is given for a recipe that already has a name.
        MissingInputError, DataError: A file is missing or malformed.
        DivergedError: A loss or gradient is not finite.
    """
    plug_in(plugins)
    new_variants = variants if isinstance(variants, Mapping) else None
    path = _recipe_path(recipe, new_variants, Path(out), name)
    file = load_recipe(path, _override_strings(overrides), option_check=models.check_options)
    selected = [] if variants is None or isinstance(variants, Mapping) else name_list(variants)
    settings = TrainingSettings(
        file=file,
        out=Path(out),
        variants=file.chosen(selected),
        seeds=seeds,
        data_dir=None if data_dir is None else Path(data_dir),
        fresh=fresh,
        allow_change=allow_change,
        device=device,
        offline=offline,
    )
    with show_progress(settings, progress) as show:
        comparison = training.train(settings, show, jobs=jobs)
    assert comparison is not None
    return ComparedRuns(**vars(comparison))


def _recipe_path(
    recipe: str | Path | Mapping[str, Any], variants: Variants | None, out: Path, name: str | None
) -> str | Path:
    """Return the path or name of the recipe; writes it first if it is a dict or has new variants."""
    if isinstance(recipe, Mapping) or variants is not None:
        return _write_recipe(recipe, variants, out, name or "own")
    if name is not None:
        raise UsageError(f"name={name!r} is for a dict or for new variants; {recipe} has a name")
    return recipe


def _override_strings(overrides: Overrides) -> list[str]:
    """Return overrides as KEY=VALUE strings; values of a dict are written in YAML's flow style."""
    if not isinstance(overrides, Mapping):
        if isinstance(overrides, str):
            raise UsageError('overrides must be a list or a dict, such as {"train.steps": 200}')
        return list(overrides)
    return [f"{key}={_flow_yaml(value)}" for key, value in overrides.items()]


def _flow_yaml(value: Any) -> str:
    text = yaml.safe_dump(_plain(value), default_flow_style=True, width=10**6, sort_keys=False)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    """Convert to types of YAML: paths to strings, tuples to lists, NumPy scalars to Python numbers."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _write_recipe(recipe: str | Path | Mapping[str, Any], variants: Variants | None, out: Path, name: str) -> Path:
    """Write a recipe file to `out`, from a dict or from a recipe with new variants, with absolute paths."""
    if not is_name(name):
        raise UsageError(f"name {name!r} cannot name a run folder")
    if isinstance(recipe, Mapping):
        keys = _plain(recipe)
    else:
        keys = {"extends": str(resolve(recipe).absolute())}
    if variants is not None:
        keys |= {"variants": _plain(variants)}
    try:
        text = yaml.safe_dump(_absolute(keys), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise RecipeError(f"the recipe has a value that YAML does not know: {error}") from error
    make_folder(out)
    path = out / f"{name}.yaml"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_output(path, text)
    return path


def _absolute(value: Any, key: tuple[str, ...] = ()) -> Any:
    """Make existing paths of a recipe absolute, also in variants; others may name data sets or shipped recipes."""
    if isinstance(value, dict):
        return {
            name: _absolute(item, (*key, *([name] if key == ("variants",) else name.split("."))))
            for name, item in value.items()
        }
    key = key[2:] if key[:1] == ("variants",) else key
    if key not in (*build.PATHS, ("extends",)):
        return value
    if isinstance(value, list):
        return [_absolute(item, key) for item in value]
    return build.absolute_paths(value, COMMAND_LINE, key == build.INIT) if isinstance(value, str) else value


def evaluate(
    runs: str | Path | Sequence[str | Path],
    *,
    splits: str | Sequence[str] | None = None,
    metrics: str | Sequence[str] | None = None,
    search: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    fresh: bool = False,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    plugins: Plugins = (),
) -> ComparedRuns:
    """Score and compare finished runs; stored scores are reused.

    Args:
        runs: folders with one or more runs, or "demo".
        splits: name or names of splits; default: the splits of each run's recipe.
        metrics: name or names, such as bleu, chrf, rouge; default: the metrics of each run's recipe.
        search: keys of the search section, such as {"method": "beam", "beam": 4}.
        baseline: variant that the others are compared with; default: the recipe's.
        fresh: decode and score again.
        device, data_dir, offline: see `attnkit eval`.
        plugins: Python files with custom mechanisms or metrics.

    Raises:
        MissingInputError: There is no finished run.
        UsageError: A metric does not exist or does not fit the task, or no run is of the variant `baseline`.
        RecipeError: A key of `search` is invalid.
    """
    plug_in(plugins)
    found_runs = find_runs([runs] if isinstance(runs, str | Path) else runs)
    one_task(found_runs, "score each task separately")
    eval_changes = {"metrics": expand(name_list(metrics))} if metrics else {}
    overrides = [f"search.{key}={_flow_yaml(value)}" for key, value in (search or {}).items()]
    rows = list[ScoreRow]()
    for run in found_runs:
        recipe = run.changed_recipe(overrides) if overrides else run.recipe
        recipe = recipe.model_copy(update={"eval": recipe.eval.model_copy(update=eval_changes)})
        rows += evaluate_run(
            run, recipe, name_list(splits or ()), force=fresh, device=device, data_dir=data_dir, offline=offline
        )
    by_recipe, variants = baselines(found_runs), {run.variant for run in found_runs}
    if baseline is not None and baseline not in variants:
        known = ", ".join(sorted(variants))
        raise UsageError(f"baseline {baseline!r}: no run is of this variant; choose from {known}")
    if baseline is not None:
        by_recipe = dict.fromkeys(by_recipe, baseline)
    settings, published = found_runs[0].recipe.eval, PublishedFigures.of_runs(found_runs)
    result = side_by_side(rows, by_recipe, settings, published=published)
    return ComparedRuns(**vars(result))
