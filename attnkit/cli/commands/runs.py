"""`attnkit runs`: what there is, packing it, and removing checkpoints of finished runs."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from attnkit.cli import completion, console, options, output
from attnkit.cli.help import Group
from attnkit.cli.options import flag
from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.runs import Run
    from attnkit.runs.status import RunStatus

LIST = "list"
ARCHIVES = (".tar.gz", ".tgz")
Folder = Annotated[
    Path,
    Argument(
        metavar="DIR", help="Folder of runs. [default: runs]", autocompletion=completion.folders
    ),
]


class RunsGroup(Group):
    """`attnkit runs [DIR]` is `attnkit runs list [DIR]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        asked = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        asked = asked or (ctx.resilient_parsing and len(args) < 2)  # TAB completes the subcommands
        return super().parse_args(ctx, args if asked else [LIST, *args])


GROUP = RunsGroup
app = typer.Typer(
    help="List runs with state, score, age and size, pack them, or remove checkpoints.\n\n"
    "`attnkit runs [DIR]` is short for `attnkit runs list [DIR]`."
)


@app.command(LIST)
def list_runs(
    folder: Folder = Path("runs"),
    *,
    format: options.Format = "table",
    columns: options.Columns = None,
    plugins: options.Plugins = None,
) -> None:
    """List every run in a folder with its state and how its recipe differs.

    States: done, unfinished, training (now), failed, damaged. The score is the first metric of the
    evaluation. The size covers all files of the run.

      attnkit runs
      attnkit runs runs/quickstart --format csv
    """
    from attnkit.runs.status import statuses
    from attnkit.show import runs_table

    found, now = statuses(folder), time.time()
    if format == "table":
        tables = runs_table.runs_tables(found, now)
    else:
        tables = [runs_table.runs_table(found, now)]
    output.write_tables(output.choose(tables, columns), format)


@app.command("clean")
def clean(
    folder: Folder = Path("runs"),
    *,
    yes: options.Yes = False,
    plugins: options.Plugins = None,
) -> None:
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
    refusal = f"{folder}: would remove the checkpoints of {total}"
    if not yes and not console.confirmed(f"Remove the checkpoints of {total}?", refusal):
        console.say("nothing was removed")
        return
    removed = remove(found, console.warn)
    console.say(f"removed {amount(removed)}")


@app.command("pack")
def pack(
    folders: Annotated[
        list[str],
        Argument(
            metavar="RUN",
            help="A finished run, or a folder of several.",
            autocompletion=completion.folders,
        ),
    ],
    *,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            metavar="FILE.tar.gz|DIR",
            help="Write this file; with --results, files below this folder. [default: named "
            "after the run, in the current folder; with --results: results]",
        ),
    ] = None,
    checkpoints: Annotated[
        bool, flag("--checkpoints", "Include the checkpoints, which only training needs.")
    ] = False,
    results: Annotated[
        bool,
        flag(
            "--results",
            "Pack results only, one small file a run: recipe, manifest, thinned log, scores, "
            "outputs and their statistics, without weights.",
        ),
    ] = False,
    data_dir: options.DataDir = None,
    plugins: options.Plugins = None,
) -> None:
    """Pack finished runs into one archive for use elsewhere, or their results alone.

    Unpack it with tar in any folder to generate and score as here. It contains weights, tokenizer,
    outputs, scores and the test rows (up to 10 MB per split), but no training data. The same runs
    give the same bytes. Results (--results) are opened like runs by eval, compare, plot, report,
    verify and runs, without unpacking.

      attnkit runs pack runs/quickstart/scaled-dot/seed-1
      attnkit runs pack runs/quickstart -o quickstart.tar.gz
      tar xzf quickstart.tar.gz && attnkit eval quickstart
      attnkit runs pack runs/quickstart --results && attnkit eval results/quickstart
    """
    if results:
        if checkpoints:
            raise UsageError("--results are packed without checkpoints: leave --checkpoints out")
        _pack_results(folders, output or Path("results"))
        return
    if output is not None and not output.name.endswith(ARCHIVES):
        raise UsageError(f"--output {output}: the archive is a .tar.gz; name it so")
    from attnkit.runs import archive, find_runs, run_path

    found = find_runs(folders, note=console.warn)
    for run in found:
        run.require_weights()
    first = found[0]
    one = run_path("", first.name, first.variant, first.seed).parts
    parts = one if len(found) == 1 else first.name.split("/")
    target = output or Path(f"{'-'.join(parts)}.tar.gz")
    for note in archive.keep_rows(found, data_dir):
        console.warn(note)
    count = archive.pack(found, target, checkpoints=checkpoints)
    content = f"{_runs(found)}, {count} files, {target.stat().st_size / 1e6:,.1f} MB"
    look = f"eval {'/'.join(parts)}" if len({run.name for run in found}) == 1 else "runs ."
    console.say(f"wrote {target}: {content}; to open it: tar xzf {target}, then attnkit {look}")


def _pack_results(folders: list[str], target: Path) -> None:
    """A results file for each run that is named."""
    from attnkit.errors import OutputPathError
    from attnkit.runs import find_runs
    from attnkit.runs.results_file import pack_results, results_path

    found = find_runs(folders, note=console.warn)
    paths = [results_path(run, target) for run in found]
    if twice := next((run for i, run in enumerate(found) if paths[i] in paths[:i]), None):
        raise OutputPathError(f"{twice.path}: a second run of that name; pack them one by one")
    size = sum(pack_results(run, target).stat().st_size for run in found)
    console.say(
        f"wrote {_runs(found)} below {target}, {size / 1e6:,.2f} MB; to open: attnkit eval {target}"
    )


def _runs(runs: "Sequence[RunStatus | Run]") -> str:
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
