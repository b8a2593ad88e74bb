"""`attnkit probe`: what the parts of a trained model are worth."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnkit.cli import console, output, plugin
from attnkit.cli.options import DataDir, Device, Format, Offline, RunFolder
from attnkit.cli.progress_bar import ProgressBar
from attnkit.errors import UsageError
from attnkit.storage.files import atomic_write
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.analysis.head_ablation import HeadPlace, Importance
    from attnkit.analysis.maps import Kind
    from attnkit.runs import Run
    from attnkit.show.head_importance import HeadGrid
    from attnkit.show.table import Cell, Table

app = typer.Typer(help="What the parts of a trained model are worth.", no_args_is_help=True)

KINDS = ("encoder", "decoder", "cross")


@app.callback()
def _group() -> None:
    """What the parts of a trained model are worth."""


@app.command("heads")
def heads(
    run: RunFolder,
    *,
    split: Annotated[str, typer.Option(metavar="S", help="Split that is scored.")] = "valid",
    rows: Annotated[
        int | None, typer.Option(metavar="N", help="Its first N rows alone. [default: all]")
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="M,...",
            help="perplexity and accuracy are fast; bleu, rouge, ... decode once a head.",
        ),
    ] = "perplexity",
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="encoder, decoder or cross. [default: all]"),
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(metavar="L", help="Layer, from 0. [default: all]")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(metavar="H", help="Head, from 0. [default: all]")
    ] = None,
    format: Format = "table",
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the first metric: a .png, .svg or .pdf file."),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    plugins: plugin.Plugins = None,
) -> None:
    """What the model loses without each attention head.

    Each head's output is set to zero in turn (Michel et al. 2019), whatever its mechanism, and the
    rest is scored against the whole model, with a paired bootstrap test. The run is not changed.

      attnkit probe heads RUN
      attnkit probe heads RUN --metrics bleu --rows 200 --kind cross --save heads.svg
    """
    _check(rows, kind, format, save)
    from attnkit.analysis.head_ablation import probe_heads
    from attnkit.runs import Run
    from attnkit.scoring import expand

    names = expand([name.strip() for name in metrics.split(",")])
    trained = Run.open(run)
    chosen: list[Kind] = [one for one in _kinds() if one in (kind or ())]
    with ProgressBar("heads") as progress:
        found = probe_heads(
            trained,
            _rows(trained, split, rows, data_dir, offline),
            metrics=names,
            kinds=chosen or None,
            layers=layer or (),
            heads=head or (),
            device=device,
            progress=lambda done, total: progress("", done, total),
        )
    made = table(f"{trained.name}/{trained.variant}/seed-{trained.seed}: {split}", found)
    if format == "table":
        _show(made, found)
    else:
        output.write(made, format)
    if save is not None:
        _save(trained, found, save)


def _check(rows: int | None, kinds: Sequence[str] | None, format: str, save: Path | None) -> None:
    """Refuse what cannot be before the model is loaded."""
    output.check(format)
    for kind in kinds or ():
        if kind not in KINDS:
            raise UsageError(f"--kind {quoted(kind)}: {output.choices(kind, KINDS)}")
    if rows is not None and rows < 1:
        raise UsageError(f"--rows {rows}: should be greater than or equal to 1")
    if save is not None:
        from attnkit.show import figure

        if figure.suffix(save) not in figure.FORMATS:
            raise UsageError(f"--save {save}: the name must end in .png, .svg or .pdf")
        figure.require(figure.suffix(save))
        output.check_place(save)


def _kinds() -> "tuple[Kind, ...]":
    from attnkit.analysis.maps import KINDS

    return KINDS


def _rows(
    run: "Run", split: str, most: int | None, data_dir: Path | None, offline: bool
) -> list[Any]:
    """The rows of a split of the run's corpus.

    Raises:
        MissingInputError: the run is not finished, or its corpus has no such split.
    """
    from itertools import islice

    from attnkit.scoring.evaluation import corpus_of

    return list(islice(corpus_of(run, data_dir, offline).rows(split), most))


def table(title: str, found: "Importance") -> "Table":
    """The whole model, then a row a head."""
    from attnkit.recipe.schema import LOWER_IS_BETTER
    from attnkit.show.comparison_tables import TITLES
    from attnkit.show.table import Cell, Column, Table

    names = list(found.whole)
    columns = [Column("without", "left"), Column("layer"), Column("head")]
    first = [Cell("nothing", {"kind": None}), Cell("", {"layer": None}), Cell("", {"head": None})]
    for name in names:
        columns += [Column(TITLES.get(name, name)), Column("loss", under=True)]
        fields = {name: found.whole[name].value, f"{name}_loss": 0.0}
        first += [Cell(f"{found.whole[name].value:.2f}", fields), Cell("")]
    rows = [tuple(first)]
    for place in found.effects:
        cells = [
            Cell(place.kind, {"kind": place.kind}),
            Cell(str(place.layer), {"layer": place.layer}),
            Cell(str(place.head), {"head": place.head}),
        ]
        rows.append((*cells, *(cell for name in names for cell in _cells(found, place, name))))
    notes = []
    for name in names:
        lower = " (lower is better)" if name in LOWER_IS_BETTER else ""
        notes.append(f"{TITLES.get(name, name)}{lower}: {found.whole[name].signature}")
    notes.append(f"rows: {found.rows:,}")
    notes.append(
        "loss: how much worse than the whole model; p: paired bootstrap, "
        f"{found.resamples:,} resamples; * and **: below 0.05 and 0.01 after doubling and Holm's "
        f"correction over {len(found.effects)} heads"
    )
    notes.append("a head without loss need not be idle: others may make up for it")
    return Table(f"{title}, one head taken away", tuple(columns), tuple(rows), tuple(notes))


def _cells(found: "Importance", place: "HeadPlace", name: str) -> "list[Cell]":
    """Score and loss of one head on one metric."""
    from attnkit.show.comparison_tables import p_text, stars
    from attnkit.show.head_importance import number
    from attnkit.show.table import Cell

    effect = found.effects[place][name]
    most = max(effects[name].loss for effects in found.effects.values())
    fields = {
        f"{name}_loss": effect.loss,
        f"{name}_p": effect.p,
        f"{name}_p_corrected": effect.p_corrected,
    }
    tested = "" if effect.p is None else f" {p_text(effect.p)}{stars(effect.p_corrected)}"
    return [
        Cell(f"{effect.score:.2f}", {name: effect.score}),
        Cell(number(effect.loss) + tested, fields, best=effect.loss == most),
    ]


def grids(found: "Importance", metric: str) -> "list[HeadGrid]":
    """The losses of each kind of attention as a matrix."""
    import numpy as np

    from attnkit.show.head_importance import HeadGrid

    out = []
    for kind in dict.fromkeys(place.kind for place in found.effects):
        own = {place: found.effects[place][metric].loss for place in found.effects
               if place.kind == kind}  # fmt: skip
        layers = tuple(dict.fromkeys(place.layer for place in own))
        numbers = tuple(dict.fromkeys(place.head for place in own))
        losses = np.array(list(own.values())).reshape(len(layers), len(numbers))
        out.append(HeadGrid(kind, layers, numbers, losses))
    return out


def _show(made: "Table", found: "Importance") -> None:
    """The table, then the losses at a glance."""
    from attnkit.show.head_importance import HeadGrids

    screen = console.stdout()
    screen.print(made)
    for metric in found.whole:
        screen.print()
        screen.print(HeadGrids(grids(found, metric), _loss(metric)))


def _loss(metric: str) -> str:
    from attnkit.show.comparison_tables import TITLES

    return f"loss of {TITLES.get(metric, metric)}"


def _save(run: "Run", found: "Importance", path: Path) -> None:
    """Draw the first metric.

    Raises:
        OutputPathError, OutputError: the file cannot be written.
    """
    from attnkit.show.figure import suffix
    from attnkit.show.head_importance import importance_picture

    metric = next(iter(found.whole))
    title = f"{run.name}/{run.variant}/seed-{run.seed}"
    picture = importance_picture(grids(found, metric), title, _loss(metric), suffix(path))
    for warning in picture.warnings:
        console.warn(warning)
    atomic_write(path, picture.data)
    console.say(f"drawn: {path} ({_loss(metric)})")
