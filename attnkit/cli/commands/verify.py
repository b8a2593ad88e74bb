"""`attnkit verify`: check that runs, their scores and a table of scores are unchanged."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.cli import console, options, output
from attnkit.cli.options import argument, value
from attnkit.cli.progress_bar import progress_bar
from attnkit.errors import DataError, MissingInputError

if TYPE_CHECKING:
    from attnkit.experiment.verification import Check
    from attnkit.runs.layout import FoundPath
    from attnkit.show.table import Table


def verify(
    targets: list[str] = argument("RECIPE|RUN", "A run, a folder of several, or a recipe (its runs under --out)."),
    *,
    table: Path | None = value("FILE.json", "Also check the scores of this table: eval --format json."),
    format: options.Format = "table",
    columns: options.Columns = None,
    out: options.Out = Path("runs"),
    data_dir: options.DataDir = None,
) -> None:
    """Check that runs and their scores match what was recorded.

    Recomputes the SHA-256 of every file, scores the saved outputs again, and compares all of it with
    the manifest and the stored scores. Names every file and table cell that no longer matches, and
    then exits with 65. Changes nothing.

      attnkit verify quickstart
      attnkit verify runs/quickstart/scaled-dot/seed-1
      attnkit eval quickstart --format json > table.json
      attnkit verify quickstart --table table.json
    """
    from attnkit.experiment import verification
    from attnkit.show.table import Cell, Column, Table

    paths = [path for target in targets for path in _folders(target, out)]
    tabled = None if table is None else verification.read_table(table)
    found = list["Check"]()
    with progress_bar("runs checked") as progress:
        for place, (path, fault) in enumerate(paths, 1):
            found += verification.verify(path, data_dir=data_dir, fault=fault)
            progress("", place, len(paths))
    if tabled is not None:
        found += verification.verify_table(tabled, found)
    if format in ("table", "markdown", "latex"):
        tables = _shown(found)
    else:  # one row per check, for programs
        rows = tuple((Cell(check.run, check._asdict()),) for check in found)
        tables = [Table("", (Column("run", align="left"),), rows)]
    output.write_tables(output.choose(tables, columns), format)
    wrong = [check for check in found if check.state == "different"]
    if wrong:
        raise DataError(
            f"{len(wrong)} of {len(found)} checks do not match, the first: {wrong[0].run}: "
            f"{wrong[0].cell}: {wrong[0].text}"
        )
    checked = sum(check.state == "same" for check in found)
    matches = "everything that was checked matches" if checked else "nothing could be checked"
    console.say(f"{len(found)} checks: {matches}")


def _folders(target: str, out: Path) -> "list[FoundPath]":
    """Return the runs of a recipe or in a folder, damaged runs included.  Raises MissingInputError without any."""
    from attnkit.recipe import load
    from attnkit.runs import run_path
    from attnkit.runs.demo import located
    from attnkit.runs.layout import is_results_file, require_runs, run_paths

    folder = located(target)
    if not folder.is_dir() and not is_results_file(folder):
        file = load(target, [])
        folders = [run_path(out, file.name, name, 0).parent for name in file.variants]
        found = [path for one in folders if one.is_dir() for path in run_paths(one)]
        folder = out / file.name
    else:
        require_runs(folder, "")
        found = list(run_paths(folder))
    if not found:
        raise MissingInputError(f"{folder}: no run is here; `attnkit train RECIPE` makes one")
    return found


def _shown(found: "Sequence[Check]") -> "list[Table]":
    """Return a table of the numbers of checks per run and state, and a table of all checks that did not match."""
    from attnkit.runs.demo import named
    from attnkit.show.table import NONE, Table

    kinds = {"file": "files", "score": "scores", "table": "table"}
    used = [kind for kind in kinds if any(check.kind == kind for check in found)]
    rows = []
    for run, identity in dict.fromkeys((check.run, check.run_id) for check in found):
        texts = []
        for kind in used:
            states = [check.state for check in found if (check.run, check.kind) == (run, kind)]
            texts.append(", ".join(f"{n} {state}" for state, n in sorted(Counter(states).items())))
        rows.append([named(run), identity or NONE, *(text or NONE for text in texts)])
    tables = [Table.of_texts("", ["run", "run id", *map(kinds.__getitem__, used)], rows)]
    others: dict[tuple[str, str], list[str]] = {}
    for check in found:
        if check.state != "same":
            text = check.state + f": {check.text}" * bool(check.text)
            others.setdefault((check.run, text), []).append(check.cell)
    if others:
        cells = [[named(run), ", ".join(some), text] for (run, text), some in others.items()]
        tables.append(Table.of_texts("", ["run", "cell", "found"], cells))
    return tables
