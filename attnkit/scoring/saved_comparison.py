"""Runs side by side from what their evaluations saved: nothing is decoded, no model is loaded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnkit.errors import MissingInputError
from attnkit.recipe.metrics import base_metric
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.scoring.comparison import side_by_side
from attnkit.scoring.metrics import expand
from attnkit.scoring.published_figures import published_figures
from attnkit.scoring.saved_scores import CONDITION, SavedScores, describe_run, stored_name
from attnkit.scoring.significance import DEFAULT_MARGINS, Margins
from attnkit.scoring.systems import Entry


def comparison(
    runs: Iterable[Run],
    splits: Sequence[str] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    baseline: str | Mapping[str, str] | None = None,
    resamples: int = 1000,
    margins: Margins = DEFAULT_MARGINS,
) -> dict[str, Any]:
    """Evaluated runs side by side: the object of `attnkit eval --format json`.

    Args:
        runs: in the order in which they are shown.
        splits: all that were scored when None.
        metrics: all that were scored when None.
        baseline: the variant that others are compared with, or that of each recipe by its name;
            the first run's variant when None.
        resamples: of the paired bootstrap; 0 leaves p-values out.
        margins: within which systems are level.

    Raises:
        MissingInputError: a run was not evaluated on a split.
        DataError: what was saved is damaged.
    """
    names = None if metrics is None else expand(metrics)
    if names is not None and "perplexity" in names:
        names = expand((*names, "word-perplexity"))
    runs = list(runs)
    entries = [saved_entry(run, split) for run in runs for split in splits or scored_splits(run)]
    if names is not None:
        entries = [entry.only(names) for entry in entries]
    figures = published_figures(runs)
    return side_by_side(
        entries,
        baselines(entries, baseline),
        published=figures,
        resamples=resamples,
        margins=margins,
    )


def baselines(
    entries: Iterable[Entry], chosen: str | Mapping[str, str] | None = None
) -> dict[str | None, str]:
    """The baseline of each recipe: the chosen variant, else the first one shown."""
    out: dict[str | None, str] = {}
    for entry in entries:
        recipe = entry.row["recipe"]
        given = chosen if isinstance(chosen, str) else (chosen or {}).get(recipe)
        out.setdefault(recipe, given or entry.row["variant"])
    return out


def saved_entries(run: Run) -> list[Entry]:
    """All that was saved of a run, as `attnkit eval RUN` shows it: the recipe's splits come first.

    Metrics that were measured beside those of the recipe follow them.

    Raises:
        MissingInputError: nothing was scored.
        DataError: what was saved is damaged.
    """
    names = scored_splits(run)
    usual = run.recipe.eval.splits
    if run.recipe.task == "question-answering":
        spec = run.recipe.contexts
        of_recipe = [
            f"{split}.{method}.{count}"
            for split in usual for count in spec.counts for method in spec.methods
        ]  # fmt: skip
        entries = [_answers_entry(run, name) for name in _first(of_recipe, names)]
    else:
        entries = [saved_entry(run, name) for name in _first(usual, names)]
    if not entries:
        raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}` first")
    wanted = expand(run.recipe.eval.metrics)
    return [
        one.only(list(dict.fromkeys([*wanted, *map(base_metric, one.scores)]))) for one in entries
    ]


def _first(usual: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names, those that are usual before the others."""
    return [name for name in dict.fromkeys([*usual, *names]) if name in names]


def _answers_entry(run: Run, name: str) -> Entry:
    """What was saved of one method of answering from a number of contexts."""
    saved, found = SavedScores.read(run, name), CONDITION.match(name)
    if saved is None or found is None:
        raise MissingInputError(f"{run.path}: {name} is not scored: run `attnkit eval {run.path}`")
    return condition_entry(saved, describe_run(run), found[1], found[2], int(found[3]))


def condition_entry(
    saved: SavedScores, system: Mapping[str, Any], split: str, method: str, contexts: int
) -> Entry:
    """The row of a comparison, of questions of a split that were answered in one way."""
    entry = saved.entry(system)
    row = {"split": split, "method": method, "contexts": contexts,
           "cut": saved.facts["decode"]["cut"]}  # fmt: skip
    return replace(entry, row={**entry.row, **row})


def saved_entry(run: Run, split: str) -> Entry:
    """What was saved of a split: by the search of the run's recipe, else what has its name.

    Raises:
        MissingInputError: there was none.
        DataError: what it saved is damaged.
    """
    search = one_best(run.recipe.search).model_dump(mode="json")
    if saved := SavedScores.read(run, split, stored_name(run.scores(), split, search)):
        return saved.entry(describe_run(run))
    raise MissingInputError(f"{run.path}: split {split} is not scored: run `attnkit eval` on it")


def one_best(search: SearchConfig) -> SearchConfig:
    """The same search with one output a line."""
    return search.model_copy(update={"n_best": 1})


def scored_splits(run: Run) -> list[str]:
    """The splits that were scored, by whatever search."""
    return list(
        dict.fromkeys(
            str(entry.get("split", name)) if isinstance(entry, Mapping) else name
            for name, entry in run.scores().items()
        )
    )
