"""`attnkit pack`: finished runs as one archive."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from attnkit.cli import console, options
from attnkit.cli.options import flag
from attnkit.errors import UsageError

SUFFIXES = (".tar.gz", ".tgz")


def pack(
    runs: Annotated[
        list[str], Argument(metavar="RUN", help="A finished run, or a folder of several.")
    ],
    *,
    output: Annotated[
        Path | None,
        Option(
            "--output",
            "-o",
            metavar="FILE.tar.gz",
            help="Write this file. [default: named after the run, in the current folder]",
        ),
    ] = None,
    checkpoints: Annotated[
        bool, flag("--checkpoints", "Include the checkpoints, which only training needs.")
    ] = False,
    data_dir: options.DataDir = None,
) -> None:
    """Pack finished runs into one archive that opens elsewhere.

    Unpacked by tar in any folder, its runs generate and are scored as here: weights, tokenizer,
    outputs, scores and the test rows (up to 10 MB a split) are in it, the training data is not.
    The same runs give the same bytes.

      attnkit pack runs/quickstart/scaled-dot/seed-1
      attnkit pack runs/quickstart -o quickstart.tar.gz
      tar xzf quickstart.tar.gz && attnkit eval quickstart
    """
    if output is not None and not output.name.endswith(SUFFIXES):
        raise UsageError(f"--output {output}: the archive is a .tar.gz; name it so")
    from attnkit.runs import Run, archive, find_runs

    found = find_runs(runs, note=console.warn)
    first = found[0]
    one = Run.find("", first.name, first.variant, first.seed).parts
    parts = one if len(found) == 1 else first.name.split("/")
    target = output or Path(f"{'-'.join(parts)}.tar.gz")
    for note in archive.keep_rows(found, data_dir):
        console.warn(note)
    count = archive.pack(found, target, checkpoints=checkpoints)
    size = target.stat().st_size / 1e6
    trained = "1 run" if len(found) == 1 else f"{len(found)} runs"
    console.say(
        f"wrote {target}: {trained}, {count} files, {size:,.1f} MB; to open it: tar xzf {target}"
    )
