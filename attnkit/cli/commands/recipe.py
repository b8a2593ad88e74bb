"""`attnkit recipe`: list, show, explain and copy recipes."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnkit.cli import completion, console, plugin
from attnkit.cli.option_check import attempt
from attnkit.cli.options import DataDir, Offline, Variants
from attnkit.errors import MissingInputError, OutputPathError, UnavailableError, UsageError
from attnkit.text import nearest, quoted, safe_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnkit.recipe import Recipe, RecipeFile
    from attnkit.show.recipe_tables import Cost

app = typer.Typer(help="List, show, explain and copy recipes.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A recipe file, or the name of a shipped recipe.",
        autocompletion=completion.recipes,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Set any key of the recipe.", autocompletion=completion.keys
    ),
]


@app.command("list")
def list_recipes(
    *,
    corpora: Annotated[
        bool, typer.Option("--corpora", help="List the corpora that recipes can name.")
    ] = False,
) -> None:
    """List the shipped recipes, or the corpora that recipes can name.

    attnkit recipe list
    attnkit recipe list --corpora
    """
    from attnkit.show import recipe_tables

    if corpora:
        from attnkit.recipe import corpus_cards

        _print(recipe_tables.corpora(corpus_cards.load(name) for name in corpus_cards.names()))
        return
    from attnkit.recipe import load, shipped

    found = [(load(path), _duration(path)) for path in shipped().values()]
    _print(recipe_tables.recipes(found))


@app.command("show")
def show(
    recipe: Name,
    overrides: Overrides = None,
    *,
    variant: Variants = None,
    plugins: plugin.Plugins = None,
) -> None:
    """Print a recipe: the file as it is, or variants with every value filled in.

    attnkit recipe show quickstart
    attnkit recipe show quickstart train.steps=200 --variant linear
    """
    from attnkit.recipe import dump, load, resolve

    if not overrides and not variant:
        console.write(safe_text(_read(resolve(recipe))))
        return
    file = load(recipe, overrides or ())
    for name in _chosen(file, variant):
        console.write(dump(file.variants[name], {"recipe": file.name, "variant": name}))


@app.command("explain")
def explain(
    recipe: Name,
    overrides: Overrides = None,
    *,
    variant: Variants = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Touch no data and measure no time.")
    ] = False,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="Where time is measured.")] = "cpu",
    data_dir: DataDir = None,
    offline: Offline = False,
    plugins: plugin.Plugins = None,
) -> None:
    """Say what a recipe means and what it will cost, before anything is trained.

    Every value with the place that set it; for each variant the parameters, the memory, the share
    of padding in the batches of the real data, and the time, measured by a few updates on this
    machine; and what the attention mechanisms can do.

      attnkit recipe explain quickstart
      attnkit recipe explain my.yaml model.width=512 --variant base --quick
    """
    from attnkit.recipe import load
    from attnkit.show import recipe_tables

    file = load(recipe, overrides or (), attempt=attempt)
    names = _chosen(file, variant)
    _print(recipe_tables.values(file, names))
    _print(recipe_tables.mechanisms(file, names))
    costs = {}
    for name in names:
        console.say(f"{file.name} {name}: counting" + ("" if quick else ", preparing, measuring"))
        costs[name] = _cost(file.variants[name], quick, device, data_dir, offline)
    _print(recipe_tables.costs(costs, file.variants))


@app.command("copy")
def copy(
    recipe: Name,
    to: Annotated[
        Path | None,
        typer.Argument(metavar="TO", help="A file or folder. [default: the current folder]"),
    ] = None,
    *,
    plugins: plugin.Plugins = None,
) -> None:
    """Copy a recipe, to change it; nothing is ever overwritten.

    attnkit recipe copy quickstart my.yaml
    """
    from attnkit.recipe import load, resolve
    from attnkit.storage.files import writing

    source = resolve(recipe)
    load(source)
    target = to or Path()
    if target.is_dir():
        target = target / source.name
    copies = {target: _read(source)} | _extended(source, target)
    for path in copies:
        if os.path.lexists(path):
            raise OutputPathError(f"{path}: is there already; name another file, or move it away")
    for path, text in copies.items():
        with writing(path), path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    console.say(f"{target} is yours; train it: attnkit train {target}")


@app.command("schema")
def schema(*, plugins: plugin.Plugins = None) -> None:
    """Print the JSON Schema of recipes, by which editors complete and check them.

    attnkit recipe schema > recipe.schema.json
    """
    import json

    from attnkit.recipe.json_schema import json_schema

    console.write(json.dumps(json_schema(), indent=1) + "\n")


def _print(picture: "RenderableType") -> None:
    console.stdout().print(picture)


def _read(path: Path) -> str:
    """The text of a recipe file that may be wrong in every other way."""
    from attnkit.recipe.yaml_nodes import read_text

    return read_text(path)


def _extended(source: Path, target: Path) -> dict[Path, str]:
    """The copy of the file that a recipe extends, unless the same text is there already.

    Raises UsageError when its copy would not lie beside the copy of the recipe.
    """
    from attnkit.recipe import parent_of

    name = parent_of(source)
    if name is None:
        return {}
    if Path(name).name != name:
        raise UsageError(f"{source} extends {quoted(name)} in another folder; copy both by hand")
    text, copied = _read(source.parent / name), target.parent / name
    return {} if copied.is_file() and _read(copied) == text else {copied: text}


def _duration(path: Path) -> str:
    """How long a recipe takes, as the comments at its head say, without the machine."""
    lines = (line for line in _read(path).splitlines() if line.startswith("# time:"))
    return next(lines, "").removeprefix("# time:").partition(" on ")[0].strip()


def _chosen(file: "RecipeFile", variants: Sequence[str] | None) -> list[str]:
    """The variants that are asked for, all of them by default.  Raises UsageError."""
    for name in variants or ():
        if name not in file.variants:
            close = nearest(name, file.variants)
            hint = f"did you mean {close}?" if close else f"it has {', '.join(file.variants)}"
            raise UsageError(f"{file.name} has no variant {quoted(name)}; {hint}")
    return [name for name in file.variants if not variants or name in variants]


def _cost(
    recipe: "Recipe", quick: bool, device: str, data_dir: Path | None, offline: bool
) -> "Cost":
    """What one variant costs; without its data, what can be told without it."""
    from attnkit.experiment import cost as explain
    from attnkit.show.recipe_tables import Cost

    try:
        prepared = None
        if not quick:
            from attnkit.data.preparation import prepare

            prepared = prepare(recipe, data_dir=data_dir, offline=offline)
    except (MissingInputError, UnavailableError) as error:
        console.warn(f"no padding and no time: {error}")
    if prepared is None:
        sizes = (recipe.tokenizer.size, recipe.tokenizer.size)
        shape = explain.nominal(recipe)
        return Cost(explain.parameters(recipe, sizes), explain.memory(recipe, sizes, shape))
    sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
    shapes = explain.largest(recipe, prepared)
    return Cost(
        explain.parameters(recipe, sizes),
        max((explain.memory(recipe, sizes, shape) for shape in shapes), key=lambda m: m.total),
        explain.padding(recipe, prepared),
        explain.pace(recipe, prepared, device),
    )
