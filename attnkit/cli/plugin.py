"""The option `--plugin FILE` of every command that reads a recipe or a run."""

from pathlib import Path
from typing import Annotated

import typer


def _plug_in(context: typer.Context, files: list[Path] | None) -> list[Path] | None:
    """Make the mechanisms known before any other option or argument is looked at."""
    from attnkit import mechanisms

    if not context.resilient_parsing:
        for file in files or ():
            mechanisms.plug_in(file)
    return files


Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        help="Python file with an attention mechanism of your own; may be repeated.",
        callback=_plug_in,
        is_eager=True,
    ),
]


def flags() -> list[str]:
    """The words that name the plug-ins of this process, for a command to type next."""
    from attnkit import mechanisms

    return [word for file in mechanisms.plugged().values() for word in ("--plugin", str(file))]
