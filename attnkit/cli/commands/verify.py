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

    paths = [path for target in targets for path in _run_paths(target, out)]
    table_rows = None if table is None else verification.read_table(table)
    checks = list["Check"]()
    with progress_bar("runs checked") as progress:
        for number, (path, fault) in enumerate(paths, 1):
            checks += verification.verify(path, data_dir=data_dir, fault=fault)
            progress("", number, len(paths))
    if table_rows is not None:
        checks += verification.verify_table(table_rows, checks)
    if format in ("table", "markdown", "latex"):
        tables = _tables(checks)
    else:  # one row per check, for programs
        rows = tuple((Cell(check.run, check._asdict()),) for check in checks)
        tables = [Table("", (Column("run", align="left"),), rows)]
    output.write_tables(output.choose_columns(tables, columns), format)
    different = [check for check in checks if check.state == "different"]
    if different:
        raise DataError(
            f"{len(different)} of {len(checks)} checks do not match, the first: {different[0].run}: "
            f"{different[0].cell}: {different[0].text}"
        )
    any_same = any(check.state == "same" for check in checks)
    result = "everything that was checked matches" if any_same else "nothing could be checked"
    console.say(f"{len(checks)} checks: {result}")


def _run_paths(target: str, out: Path) -> "list[FoundPath]":
    """Return the runs of a recipe or in a folder, damaged runs included.  Raises MissingInputError without any."""
    from attnkit.recipe import load
    from attnkit.runs import run_path
    from attnkit.runs.demo import located
    from attnkit.runs.layout import is_results_file, require_runs, run_paths

    folder = located(target)
    if not folder.is_dir() and not is_results_file(folder):
        file = load(target, [])
        variants = [run_path(out, file.name, name, 0).parent for name in file.variants]
        paths = [path for variant in variants if variant.is_dir() for path in run_paths(variant)]
        folder = out / file.name
    else:
        require_runs(folder, "")
        paths = list(run_paths(folder))
    if not paths:
        raise MissingInputError(f"{folder}: no run found; `attnkit train RECIPE` makes one")
    return paths


def _tables(checks: "Sequence[Check]") -> "list[Table]":
    """Return a table of the numbers of checks per run and state, and a table of all checks but those that matched."""
    from attnkit.runs.demo import named
    from attnkit.show.table import NONE, Table

    kinds = {"file": "files", "score": "scores", "table": "table"}
    used = [kind for kind in kinds if any(check.kind == kind for check in checks)]
    rows = []
    for run, run_id in dict.fromkeys((check.run, check.run_id) for check in checks):
        texts = []
        for kind in used:
            states = [check.state for check in checks if (check.run, check.kind) == (run, kind)]
            texts.append(", ".join(f"{n} {state}" for state, n in sorted(Counter(states).items())))
        rows.append([named(run), run_id or NONE, *(text or NONE for text in texts)])
    tables = [Table.of_texts("", ["run", "run id", *(kinds[kind] for kind in used)], rows)]
    cells: dict[tuple[str, str], list[str]] = {}
    for check in checks:
        if check.state != "same":
            text = f"{check.state}: {check.text}" if check.text else check.state
            cells.setdefault((check.run, text), []).append(check.cell)
    if cells:
        rows = [[named(run), ", ".join(names), text] for (run, text), names in cells.items()]
        tables.append(Table.of_texts("", ["run", "cell", "found"], rows))
    return tables
