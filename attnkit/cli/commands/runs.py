"""`attnkit runs`: the list of runs, packing of results, and removal of checkpoints of finished runs."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from attnkit.cli import console, options, output
from attnkit.cli.help import Group
from attnkit.cli.options import argument, flag, value
from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.runs import Run
    from attnkit.runs.status import RunStatus

LIST = "list"
Folder = Annotated[Path, Argument(metavar="DIR", help="Folder of runs. [default: runs]")]


class RunsGroup(Group):
    """Group in which `attnkit runs [DIR]` means `attnkit runs list [DIR]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_subcommand = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        completes_subcommand = ctx.resilient_parsing and len(args) < 2
        return super().parse_args(ctx, args if has_subcommand or completes_subcommand else [LIST, *args])


GROUP = RunsGroup
app = typer.Typer(
    help="List runs with state, score, age and size, pack them, or remove checkpoints.\n\n"
    "`attnkit runs [DIR]` is short for `attnkit runs list [DIR]`."
)


@app.command(LIST)
def list_runs(
    folder: Folder = Path("runs"), *, format: options.Format = "table", columns: options.Columns = None
) -> None:
    """List every run in a folder with its state and how its recipe differs.

    States: done, unfinished, training (now), failed, damaged. The score is the first metric of the
    evaluation. The size covers all files of the run.

      attnkit runs
      attnkit runs runs/quickstart --format csv
    """
    from attnkit.runs.status import statuses
    from attnkit.show.runs_table import runs_tables

    tables = runs_tables(statuses(folder), time.time(), by_folder=format == "table")
    output.write_tables(output.choose_columns(tables, columns), format)


@app.command("clean")
def clean(folder: Folder = Path("runs"), *, yes: options.Yes = False) -> None:
    """Remove the checkpoints of finished runs, after asking.

    Models, outputs, scores and logs stay: the runs are used and scored as before, and `attnkit
    train` skips them. Training one further starts over. Unfinished runs keep their checkpoints.

      attnkit runs clean
      attnkit runs clean runs/quickstart --yes
    """
    from attnkit.runs.status import clean as remove
    from attnkit.runs.status import statuses
    from attnkit.show.quantities import amount

    found = [run for run in statuses(folder) if run.removable]
    if not found:
        console.say(f"{folder}: no finished run has checkpoints; nothing to remove")
        return
    for run in found:
        console.say(f"{run.path}: {amount(run.removable)}")
    total = f"{_runs(found)}, {amount(sum(run.removable for run in found))}"
    if not yes and not sys.stdin.isatty():
        raise UsageError(
            f"{folder}: would remove the checkpoints of {total}; add --yes, because there is no terminal to ask"
        )
    if not yes and not typer.confirm(f"Remove the checkpoints of {total}?", err=True):
        console.say("nothing was removed")
        return
    removed = remove(found, console.warn)
    console.say(f"removed {amount(removed)}")


@app.command("pack")
def pack(
    folders: list[str] = argument("RUN", "A finished run, or a folder of several."),
    *,
    output: Path = value("DIR", "Write below this folder.", "--output", "-o", default=Path("results")),
    results: bool = flag(
        "--results",
        "Pack recipe, manifest, thinned log, scores, outputs and their statistics, without "
        "weights. (Whole runs are folders, for tar.)",
    ),
) -> None:
    """Pack the results of finished runs, one small file per run.

    Results are opened like runs by eval, compare, plot, report, verify and runs, without unpacking.
    The same runs give the same bytes.

      attnkit runs pack runs/quickstart --results && attnkit eval results/quickstart
    """
    from attnkit.errors import OutputPathError
    from attnkit.runs import find_runs
    from attnkit.runs.packing import pack_results, results_path

    if not results:
        raise UsageError("add --results; to move a whole run, use tar or cp on its folder")
    found = find_runs(folders, note=console.warn)
    paths = [results_path(run, output) for run in found]
    if duplicate := next((run for i, run in enumerate(found) if paths[i] in paths[:i]), None):
        raise OutputPathError(f"{duplicate.path}: a second run with the same name; pack each run separately")
    size = sum(pack_results(run, output).stat().st_size for run in found)
    console.say(f"wrote {_runs(found)} below {output}, {size / 1e6:,.2f} MB; to open: attnkit eval {output}")


def _runs(runs: "Sequence[RunStatus | Run]") -> str:
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
