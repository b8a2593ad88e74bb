"""`attnkit recipe`: the list, text, meaning and copies of recipes."""

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from attnkit.cli import console, options, output
from attnkit.cli.options import Overrides, RecipeName, Variants, argument, check_options, flag, value
from attnkit.device import load_warning
from attnkit.errors import MissingInputError, OutputPathError, UnavailableError
from attnkit.text import safe_text

if TYPE_CHECKING:
    from attnkit.data.preparation import PreparedData
    from attnkit.recipe import RecipeFile

app = typer.Typer(help="List, show, explain and copy recipes.", no_args_is_help=True)


@app.command("list")
def list_recipes(
    *,
    corpora: bool = flag("--corpora", "List the known corpora instead."),
    format: options.Format = "table",
    columns: options.Columns = None,
) -> None:
    """List the shipped recipes, or the corpora that recipes can name.

    attnkit recipe list
    attnkit recipe list --corpora
    """
    from attnkit.recipe import corpus_cards, load, shipped
    from attnkit.show import recipe_tables

    if corpora:
        cards = (corpus_cards.load(name) for name in corpus_cards.names())
        listed = recipe_tables.corpora(cards)
    else:
        recipes = []
        for path in shipped().values():
            lines = (line for line in _read(path).splitlines() if line.startswith("# time:"))
            duration = re.split(r" on | \(", next(lines, "").removeprefix("# time:"))[0]  # without the machine
            recipes.append((load(path), duration.strip()))
        listed = recipe_tables.recipes(recipes)
    output.write_tables(output.choose_columns([listed], columns), format)


@app.command("show")
def show(recipe: RecipeName, overrides: Overrides = None, *, variant: Variants = None) -> None:
    """Print a recipe: the file as it is, or variants with all values filled in.

    attnkit recipe show quickstart
    attnkit recipe show quickstart train.steps=200 --variant linear
    """
    from attnkit.recipe import dump, load, resolve

    if not overrides and not variant:
        console.write(safe_text(_read(resolve(recipe))))
        return
    file = load(recipe, overrides or ())
    for name in file.chosen(variant):
        console.write(dump(file.variants[name], {"recipe": file.name, "variant": name}))


@app.command("explain")
def explain(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    variant: Variants = None,
    defaults: bool = flag("--all", "Show default values too, as in a pipe."),
    quick: bool = flag("--quick", "Read no data and measure no time."),
    format: Literal["table", "markdown", "latex", "json"] = value(
        "FORMAT", "table, markdown, latex or json.", default="table"
    ),
    device: str = value("DEVICE", "Device to measure time on.", default="cpu"),
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    download: bool = flag("--download", "Download the data if it is missing."),
) -> None:
    """Show what a recipe means and what it will cost, before training.

    Prints the values that the recipe sets and their origin, the formats to which its models can be
    exported, and for each variant the parameters, memory, padding in batches of the real data and
    training time, estimated from a few updates on this machine.

      attnkit recipe explain quickstart
      attnkit recipe explain my.yaml model.width=512 --variant base --quick
    """
    from attnkit.experiment.cost import Cost, cost_of
    from attnkit.recipe import load
    from attnkit.show import recipe_tables

    file = load(recipe, overrides or (), option_check=check_options)
    names = file.chosen(variant)
    tables = [recipe_tables.values(file, names, defaults=defaults or not console.is_terminal(sys.stdout))]
    if format != "json":
        output.write_tables(tables, format)
    if not quick and (warning := load_warning()):
        console.warn(warning)
    costs: dict[str, Cost] = {}
    precision = None
    for name in names:
        console.say(f"{file.name} {name}: counting" + ("" if quick else ", preparing, measuring"))
        prepared = None if quick else _prepared(file, name, data_dir, not download)
        costs[name] = cost = cost_of(file.variants[name], prepared, device, precision)
        if cost.pace and file.variants[name].train.precision == "auto":
            precision = cost.pace.precision  # as in training, the first variant's choice holds for all
    tables.append(recipe_tables.costs(costs, file.variants))
    if format == "json":
        records = {table.title: {"rows": table.records(), "notes": table.notes} for table in tables}
        output.write_json({"recipe": file.name, **records})
    else:
        console.write("\n")
        output.write_tables(tables[1:], format)


@app.command("copy")
def copy(
    recipe: RecipeName, to: Path | None = argument("TO", "File or folder. [default: the current folder]", default=None)
) -> None:
    """Copy a recipe for editing; existing files are never overwritten.

    attnkit recipe copy quickstart my.yaml
    """
    from attnkit.recipe import load, resolve
    from attnkit.storage.files import write_output

    source = resolve(recipe)
    load(source)
    target = to or Path()
    if target.is_dir():
        target = target / source.name
    if os.path.lexists(target):
        raise OutputPathError(f"{target}: already exists; name another file, or move it away")
    write_output(target, _with_moved_parent(source, target))
    console.say(f"wrote {target}; to train it: attnkit train {target}")


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of recipes, for completion and checks in editors.

    attnkit recipe schema > recipe.schema.json
    """
    from attnkit.recipe.json_schema import json_schema

    output.write_json(json_schema(), indent=1)


def _read(path: Path) -> str:
    """Return the text of a recipe file, which need not be a valid recipe."""
    from attnkit.recipe.yaml_nodes import read_text

    return read_text(path)


def _with_moved_parent(source: Path, target: Path) -> str:
    """Return the text of a recipe for another folder, with `extends` changed so that it names the same recipe."""
    from attnkit.recipe import library, resolve

    text = _read(source)
    match = re.search(r"""(?m)^extends:[ \t]*("[^"\n]*"|'[^'\n]*'|[^\s#]+)""", text)
    if match is None:
        return text
    parent = resolve(match[1].strip("\"'"), source.parent)
    if parent.is_relative_to(library()):
        name = parent.relative_to(library()).with_suffix("").as_posix()
    else:
        name = os.path.relpath(parent, target.parent)
    return text[: match.start(1)] + json.dumps(name) + text[match.end(1) :]


def _prepared(file: "RecipeFile", name: str, data_dir: Path | None, offline: bool) -> "PreparedData | None":
    """Return the data of a variant; None, with a warning, if the data or the initial weights are unavailable."""
    from attnkit.data.preparation import prepare
    from attnkit.experiment.initial_weights import initial_run
    from attnkit.recipe.corpus_cards import load as card

    recipe = file.variants[name]
    try:
        initial = initial_run(file, name, recipe.train.seeds[0], Path("runs"))
        tokenizer = initial.tokenizer() if initial else None
        return prepare(recipe, data_dir=data_dir, offline=offline, tokenizer=tokenizer)
    except (MissingInputError, UnavailableError) as error:
        reason = str(error)
        if offline and isinstance(error, UnavailableError) and recipe.data.corpus:
            note = card(recipe.data.corpus).note
            reason = f"{recipe.data.corpus} is not available yet; --download fetches it"
            reason += f" ({note})" if note else ""
        console.warn(f"padding and time are not measured: {reason}")
    return None
