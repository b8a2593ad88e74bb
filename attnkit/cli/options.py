"""Arguments and options that several commands share, and their checks."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option
from typer.main import get_command

from attnkit.errors import UsageError
from attnkit.recipe.search_settings import search_settings as search_settings
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe


def value(metavar: str, help: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Return an option with a value, as the default of a parameter, whose name it takes unless `names` are given."""
    return Option(default, *names, metavar=metavar, help=help, **settings)


def flag(name: str, help: str, *short: str) -> Any:
    """Return an option without a value and without a --no- form."""
    return Option(False, name, *short, help=help)


def argument(metavar: str, help: str, *, default: Any = ...) -> Any:
    """Return a positional argument, required unless it has a default."""
    return Argument(default, metavar=metavar, help=help)


def one_of(*words: str) -> dict[str, Any]:
    """Return settings for a repeatable option that accepts only these words, since typer has no lists of `Literal`."""

    def parse(word: str) -> str:
        if word not in words:
            raise typer.BadParameter(f"{quoted(word)} is not one of {', '.join(words)}")
        return word

    return {"parser": parse}


def parse_numbers(option: str, texts: Sequence[str] | None) -> tuple[int, ...]:
    """Parse a repeatable option with numbers from 0, such as 3 or 0,2,5-7.  Raises UsageError if malformed."""
    found: list[int] = []
    for part in [part for text in texts or () for part in text.split(",")]:
        first, _, last = part.partition("-")
        if not re.fullmatch(r"\d{1,4}(-\d{1,4})?", part) or int(last or first) < int(first):
            raise UsageError(f"{option} {quoted(part)}: must be numbers from 0, such as 3, 0-5 or 0,2,4")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def parse_decimals(option: str, text: str) -> list[float]:
    """Parse an option with numbers such as 0.5,1.  Raises UsageError if malformed."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {quoted(text)}: must be numbers such as 0.5,1,2") from None


def _load_plugins(context: typer.Context, files: list[Path] | None) -> None:
    """Load the plug-ins before any other option or argument is processed, since the others may name them."""
    from attnkit import mechanisms

    if not context.resilient_parsing:
        for file in files or ():
            mechanisms.plug_in(file)


@cache
def plugin_option() -> Any:
    """Return the option --plugin, which `help.Command` adds to every command."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def only(
        plugin: list[Path] | None = value(
            "FILE",
            "Python file that defines an attention mechanism or a metric. Repeatable.",
            callback=_load_plugins,
            is_eager=True,
            expose_value=False,
        ),
    ) -> None:
        """Carry the option."""

    return get_command(app).params[0]


def _use_threads(threads: int | None) -> int | None:
    """Set the number of threads before torch is imported."""
    from attnkit.device import use_threads

    if threads is not None:
        if threads < 1:
            raise UsageError(f"--threads {threads}: must be at least 1")
        use_threads(threads)
    return threads


Processes = Annotated[
    int, Option(metavar="N", help="Run N processes (ranks) on this machine, as torchrun does.", min=1)
]


def run_in_processes(nproc: int) -> bool:
    """Run the command in `nproc` processes unless this process is a rank; return whether the command was run.

    Raises UsageError if torchrun has started another number of processes, and PeerLostError as `launch`.
    """
    from attnkit.distributed import group

    if group.is_distributed():
        if nproc not in (1, group.world_size()):
            raise UsageError(f"--nproc {nproc}: {group.world_size()} processes were started; remove --nproc")
        return False
    if nproc == 1:
        return False
    from attnkit.cli import console
    from attnkit.distributed.launch import launch

    if code := launch(console.arguments(), nproc):
        raise typer.Exit(code)
    return True


RecipeName = Annotated[
    str, Argument(metavar="RECIPE", help="Recipe file, or the name of a shipped recipe (see `attnkit recipe list`).")
]
Overrides = Annotated[
    list[str] | None,
    Argument(
        metavar="KEY=VALUE",
        help="Override recipe keys, as in train.steps=200; train.lr=1e-3,2e-3 makes a variant of each value.",
    ),
]
Variants = Annotated[list[str] | None, Option(metavar="NAME", help="Only this variant. Repeatable.")]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="Folder of a finished run (seed-N).")]
ModelName = Annotated[str, Argument(metavar="MODEL", help="A finished run, or a Hugging Face model (name or folder).")]
NUMBERS = "from 0; also 0-5 or 0,2,4. Repeatable. [default: all]"
Layers = Annotated[list[str] | None, Option("--layer", metavar="L", help=f"Layer, {NUMBERS}")]
Heads = Annotated[list[str] | None, Option("--head", metavar="H", help=f"Head, {NUMBERS}")]
Out = Annotated[Path, Option(metavar="DIR", help="Root folder of runs.")]
Device = Annotated[str, Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]
Threads = Annotated[
    int | None,
    Option(
        metavar="N",
        help="Threads to compute with. [default: OMP_NUM_THREADS, or one per core]",
        callback=_use_threads,
        is_eager=True,
    ),
]
DataDir = Annotated[Path | None, Option(metavar="DIR", help="Folder of corpora. [default: $ATTNKIT_DATA]")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask for confirmation.")]
Offline = Annotated[bool, Option("--offline", help="Never download.")]
Chat = Annotated[
    bool, Option("--chat", help="Apply the chat template of a Hugging Face model, and ask for a short answer.")
]
Template = Annotated[
    str,
    Option(
        metavar="TEXT",
        help="Prompt template of a Hugging Face model. [default: {context}\\n\\n{prompt}; with "
        "--chat {context}\\n\\nQuestion: {prompt}\\nAnswer in a few words:]",
    ),
]
ModelType = Annotated[
    str, Option(metavar="TYPE", help="Weights of a Hugging Face model: float32, bfloat16, float16 or auto.")
]
Format = Annotated[
    Literal["table", "markdown", "latex", "csv", "json"],
    Option(metavar="FORMAT", help="table, markdown, latex, csv or json."),
]
Notes = Annotated[
    Literal["none", "short", "full"] | None,
    Option(metavar="NOTES", help="Notes below a table: none, short or full. [default: full; in latex short]"),
]
Columns = Annotated[
    str | None, Option(metavar="NAME,...", help="Show these columns at any width. [default: as many as fit]")
]
Beam = Annotated[int | None, Option(metavar="K", help="Beam search with K beams; 1 is greedy.")]
Sample = Annotated[bool, Option("--sample", help="Sample instead of searching.")]
TopP = Annotated[
    float | None, Option(metavar="P", help="Sample from the smallest set of tokens with total probability P.")
]
Temperature = Annotated[
    float | None, Option(metavar="T", help="Sampling temperature: below 1 sharpens, above 1 flattens.")
]
Seed = Annotated[int | None, Option(metavar="N", help="Seed for sampling.")]
MaxLength = Annotated[int | None, Option(metavar="N", help="Maximum output length in tokens.")]


def parse_lengths(text: str | None) -> list[int] | None:
    """Parse --lengths: 128,500, or 128..1024, which doubles.  Raises UsageError if malformed."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([1-9]\d{0,8})(?:\.\.([1-9]\d{0,8}))?", part.strip())
        if match is None:
            raise UsageError(
                f"--lengths {quoted(text)}: must be numbers such as 512,1000 or a range such as "
                "128..4096, which doubles"
            )
        number, last = int(match[1]), int(match[2] or match[1])
        if number > last:
            raise UsageError(f"--lengths {quoted(part.strip())}: the range must ascend")
        while number <= last:
            found.append(number)
            number *= 2
    return found


def plugin_arguments() -> list[str]:
    """Return the arguments --plugin FILE of the loaded plug-ins."""
    from attnkit import mechanisms

    return [word for path in mechanisms.plugged().values() for word in ("--plugin", str(path))]


def check_options(recipe: "Recipe", role: str, options: Mapping[str, Any]) -> None:
    """Call `models.check_options`, which imports torch, only for recipes that set options of mechanisms."""
    from attnkit import models

    models.check_options(recipe, role, options)
