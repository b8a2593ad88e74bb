"""Arguments and options that several commands share, with one wording and one check each."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from attnkit.cli import completion
from attnkit.errors import UsageError
from attnkit.recipe.search_settings import search_settings as search_settings
from attnkit.text import nearest, quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe


def suggestion(word: str, known: Sequence[str]) -> str:
    """What to type instead of an unknown word: the nearest known one, then all of them."""
    near = nearest(word, known)
    return f"{f'did you mean {near}? ' if near else ''}choose from {', '.join(known)}"


def value(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option with a value, for `Annotated`; named as its parameter unless `names` say else."""
    return Option(*names, metavar=metavar, help=help, **more)


def flag(name: str, help: str, *short: str) -> Any:
    """An option without a value, and without a --no- form."""
    return Option(name, *short, help=help)


def choice(
    name: str, words: Sequence[str], help: str, metavar: str = "", *, keys: bool = False
) -> Any:
    """An option that takes one of some words; TAB completes them; `metavar` is NAME for --name.

    With `keys` it also takes a dotted key of a recipe.

    Its parameter is annotated with `str` or a `Literal`.  Any other word is a UsageError that
    names the nearest one.
    """

    def parse(word: str) -> str:
        if word not in words and not (keys and "." in word):
            raise UsageError(f"{name} {quoted(word)}: {suggestion(word, words)}")
        return word

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return Option(
        name, parser=parse, autocompletion=complete, help=help, metavar=metavar or name[2:].upper()
    )


class Numbers(tuple[int, ...]):
    """What one --layer or --head names; a class, since typer has no lists of tuples."""

    __slots__ = ()


def numbers(name: str, metavar: str, what: str) -> Any:
    """A repeatable option of numbers from 0, such as 3 or 0,2,5-7; annotated `list[Numbers]`."""

    def parse(word: str) -> Numbers:
        found: list[int] = []
        for part in word.split(","):
            first, _, last = part.partition("-")
            if not re.fullmatch(r"\d{1,4}(-\d{1,4})?", part) or int(last or first) < int(first):
                raise UsageError(
                    f"{name} {quoted(word)}: must be numbers from 0, such as 3, 0-5 or 0,2,4"
                )
            found += range(int(first), int(last or first) + 1)
        return Numbers(found)

    help = f"{what}, from 0; also 0-5 or 0,2,4. Repeatable. [default: all]"
    return Option(name, parser=parse, metavar=metavar, help=help)


def all_of(given: Sequence[Numbers] | None) -> tuple[int, ...]:
    """The numbers that such an option was given."""
    return tuple(number for some in given or () for number in some)


FORMATS = ("table", "markdown", "latex", "csv", "json")
FormatWord = Literal["table", "markdown", "latex", "csv", "json"]


def _load_plugins(context: typer.Context, files: list[Path] | None) -> list[Path] | None:
    """Register the mechanisms before any other option or argument is processed."""
    from attnkit import mechanisms

    if not context.resilient_parsing:
        for file in files or ():
            mechanisms.plug_in(file)
    return files


def _use_threads(threads: int | None) -> int | None:
    """Set the number of threads before torch is imported."""
    from attnkit.device import use_threads

    if threads is not None:
        if threads < 1:
            raise UsageError(f"--threads {threads}: must be at least 1")
        use_threads(threads)
    return threads


Processes = Annotated[
    int, value("N", "Run N processes (ranks) on this machine, as torchrun does.", min=1)
]


def in_processes(nproc: int) -> bool:
    """Run the command in so many processes, unless this is one of them; whether that was done.

    Raises:
        UsageError: torchrun has started another number of processes.
        PeerLostError: as `launch`.
    """
    from attnkit.distributed import group

    if group.is_distributed():
        if nproc not in (1, count := group.world_size()):
            raise UsageError(f"--nproc {nproc}: {count} processes were started; leave it out")
        return False
    if nproc == 1:
        return False
    from attnkit.cli import console
    from attnkit.distributed.launch import launch

    if code := launch(console.words(), nproc):
        raise typer.Exit(code)
    return True


RecipeName = Annotated[
    str,
    Argument(
        metavar="RECIPE",
        help="Recipe file, or the name of a shipped recipe (see `attnkit recipe list`).",
        autocompletion=completion.recipes,
    ),
]
Overrides = Annotated[
    list[str] | None,
    Argument(
        metavar="KEY=VALUE",
        help="Override recipe keys, as in train.steps=200; train.lr=1e-3,2e-3 makes a variant of "
        "each value.",
        autocompletion=completion.keys,
    ),
]
Variants = Annotated[
    list[str] | None,
    value("NAME", "Only this variant. Repeatable.", autocompletion=completion.variants),
]
RunFolder = Annotated[
    Path,
    Argument(
        metavar="RUN",
        help="Folder of a finished run (seed-N).",
        autocompletion=completion.runs,
    ),
]
ModelName = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="A finished run, or a Hugging Face model (name or folder).",
        autocompletion=completion.runs,
    ),
]
Plugins = Annotated[
    list[Path] | None,
    Option(
        "--plugin",
        metavar="FILE",
        help="Python file that defines an attention mechanism or a metric. Repeatable.",
        callback=_load_plugins,
        is_eager=True,
    ),
]
Layers = Annotated[list[Numbers] | None, numbers("--layer", "L", "Layer")]
Heads = Annotated[list[Numbers] | None, numbers("--head", "H", "Head")]
Out = Annotated[Path, value("DIR", "Root folder of runs.")]
Device = Annotated[str, value("DEVICE", "auto, cpu, cuda, cuda:N or mps.")]
Threads = Annotated[
    int | None,
    Option(
        metavar="N",
        help="Threads to compute with. [default: OMP_NUM_THREADS, or one per core]",
        callback=_use_threads,
        is_eager=True,
    ),
]
DataDir = Annotated[Path | None, value("DIR", "Folder of corpora. [default: $ATTNKIT_DATA]")]
Yes = Annotated[bool, flag("--yes", "Do not ask for confirmation.", "-y")]
Offline = Annotated[bool, flag("--offline", "Never download.")]
Chat = Annotated[
    bool,
    flag("--chat", "Apply the chat template of a Hugging Face model, and ask for a short answer."),
]
Template = Annotated[
    str,
    value(
        "TEXT",
        "Prompt template of a Hugging Face model. [default: {context}\\n\\n{prompt}; with --chat "
        "{context}\\n\\nQuestion: {prompt}\\nAnswer in a few words:]",
    ),
]
ModelType = Annotated[
    str,
    value("TYPE", "Weights of a Hugging Face model: float32, bfloat16, float16 or auto."),
]
Format = Annotated[FormatWord, choice("--format", FORMATS, "table, markdown, latex, csv or json.")]
Notes = Annotated[
    Literal["none", "short", "full"] | None,
    choice(
        "--notes",
        ("none", "short", "full"),
        "Notes below a table: none, short or full. [default: full; in latex short]",
    ),
]
Columns = Annotated[
    str | None,
    value("NAME,...", "Show these columns at any width. [default: as many as fit]"),
]
Beam = Annotated[int | None, value("K", "Beam search with K beams; 1 is greedy.")]
Sample = Annotated[bool, flag("--sample", "Sample instead of searching.")]
TopP = Annotated[
    float | None, value("P", "Sample from the smallest set of tokens with total probability P.")
]
Temperature = Annotated[
    float | None, value("T", "Sampling temperature: below 1 sharpens, above 1 flattens.")
]
Seed = Annotated[int | None, value("N", "Seed for sampling.")]
MaxLength = Annotated[int | None, value("N", "Maximum output length in tokens.")]


def lengths(text: str | None) -> list[int] | None:
    """The numbers of --lengths: 128,500 or 128..1024, which doubles."""
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


def check_options(recipe: "Recipe", role: str, options: Mapping[str, Any]) -> None:
    """`models.check_options`, which imports torch, for recipes that set options of mechanisms."""
    from attnkit import models

    models.check_options(recipe, role, options)
