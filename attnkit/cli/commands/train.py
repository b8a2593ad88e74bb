"""`attnkit train`: run the trainings of a recipe and print the table that compares them."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attnkit.cli import completion, console, output, plugin
from attnkit.cli.option_check import attempt
from attnkit.cli.options import DataDir, Device, Offline, Out, Variants
from attnkit.errors import MemoryLimitError, StoppedError, UsageError, out_of_memory
from attnkit.text import nearest, quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe, RecipeFile
    from attnkit.train.events import ScoredEvent


class PlannedRun(NamedTuple):
    """One training: a variant with a seed, and where it goes."""

    variant: str
    seed: int
    folder: Path


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A recipe file, or the name of a shipped recipe (attnkit recipe list).",
            autocompletion=completion.recipes,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Set any key of the recipe: train.steps=200 model.width=128.",
            autocompletion=completion.keys,
        ),
    ] = None,
    *,
    variant: Variants = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="This seed instead of the recipe's; may be repeated."),
    ] = None,
    out: Out = Path("runs"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over, even where a run is there already.")
    ] = False,
    allow_change: Annotated[
        bool, typer.Option("--allow-change", help="Go on with a run whose recipe has changed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be trained, and stop.")
    ] = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Events as JSON, one a line, on standard output.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the final table and nothing else.")
    ] = False,
    plugins: plugin.Plugins = None,
) -> None:
    """Train every variant of a recipe with every seed, score them, and print the table.

    What is finished already is skipped and what was interrupted goes on where it stopped, so the
    same command can be run again at any time.

      attnkit train quickstart
      attnkit train translation/multi30k --data-dir corpora --variant vanilla
      attnkit train my.yaml train.steps=200 --seed 1 --seed 2 --out /tmp/runs
    """
    from attnkit.recipe import load

    settings, variant, seed = _sort_words(overrides or [], variant or [], seed or [])
    file = load(recipe, settings, attempt=attempt)
    jobs = list(_jobs(file, variant, seed, out))
    if dry_run:
        _check_data(file, jobs, data_dir)
        _announce(file, jobs, as_json)
        return
    if not (as_json or quiet):
        console.say(_headline(file, jobs, out))
    options = {
        "variants": list(dict.fromkeys(job.variant for job in jobs)),
        "seeds": seed or None,
        "out": out,
        "fresh": fresh,
        "allow_change": allow_change,
        "device": device,
        "data_dir": data_dir,
        "offline": offline,
    }
    scored = _follow(file, jobs, options, as_json=as_json, quiet=quiet)
    if scored is not None and not as_json:
        _table(scored, warn=not quiet)
    if not (as_json or quiet):
        _next_commands(file, jobs, out)


def _follow(
    file: "RecipeFile",
    jobs: Sequence[PlannedRun],
    options: Mapping[str, Any],
    *,
    as_json: bool,
    quiet: bool,
) -> "ScoredEvent | None":
    """Train and show what happens; the scores at the end."""
    from attnkit.cli import training_display
    from attnkit.show.training_board import Board
    from attnkit.show.training_board import BoardRun as Line
    from attnkit.train import events
    from attnkit.train.signals import StopSignals

    board = Board(file.name, tuple(Line(j.variant, j.seed) for j in jobs))
    screen = training_display.choose(board, as_lines_of_json=as_json, quiet=quiet)
    scored = None
    # Signals are recorded from here on; what follows is slow to import.
    with StopSignals(screen.notice) as stop, screen:
        try:
            from attnkit.experiment import training

            if stop.requested:
                raise StoppedError(f"stopped by {stop.requested} before training; run this again")
            for event in training.train(file, **options, notice=screen.notice):
                screen.show(event)
                scored = event if isinstance(event, events.ScoredEvent) else scored
        except (MemoryError, RuntimeError) as error:
            _explain_memory(error, file)
            raise
        except StoppedError as error:
            raise StoppedError(f"{error}: {console.again(without=['--fresh'])}") from None
    return scored


def _sort_words(
    words: Sequence[str], variants: list[str], seeds: list[int]
) -> tuple[list[str], list[str], list[int]]:
    """The KEY=VALUE words, variants and seeds; `--variant a b` and `--seed 1 2` are understood.

    Raises:
        UsageError: a word is none of these, such as a second recipe.
    """
    settings, more, numbers = [], list(variants), list(seeds)
    for word in words:
        if "=" in word:
            settings.append(word)
        elif seeds and word.isdecimal():
            numbers.append(int(word))
        elif variants and "/" not in word and "." not in word:
            more.append(word)
        else:
            raise UsageError(
                f"{quoted(word)} is not KEY=VALUE (such as train.steps=200), and one command "
                "trains one recipe"
            )
    return settings, more, numbers


def _jobs(
    file: "RecipeFile", variants: Sequence[str], seeds: Sequence[int], out: Path
) -> Iterator[PlannedRun]:
    """The trainings that the command line asks for, in the order of the recipe."""
    from attnkit.runs import Run

    for name in variants:
        if name not in file.variants:
            guess = nearest(name, file.variants)
            hint = f"; did you mean {quoted(guess)}?" if guess else ""
            known = ", ".join(file.variants)
            raise UsageError(f"{file.name} has no variant {quoted(name)}: it has {known}{hint}")
    for seed in seeds:
        if seed < 0:
            raise UsageError(f"--seed {seed}: a seed is 0 or more")
    for name, recipe in file.variants.items():
        if variants and name not in variants:
            continue
        for seed in dict.fromkeys(seeds or recipe.train.seeds):
            yield PlannedRun(name, seed, Run.find(out, file.name, name, seed))


def _headline(file: "RecipeFile", jobs: Sequence[PlannedRun], out: Path) -> str:
    """What is about to happen, before anything heavy is imported."""
    variants = len({job.variant for job in jobs})
    seeds = len(jobs) // variants
    plural = f"{variants} variant{'s' * (variants != 1)}, {seeds} seed{'s' * (seeds != 1)}"
    return f"{file.name}: {plural}, runs go to {out / file.name}"


def _check_data(file: "RecipeFile", jobs: Sequence[PlannedRun], data_dir: Path | None) -> None:
    """--dry-run: what training would say of the splits that are scored; nothing is downloaded."""
    from attnkit.data.preparation import check_splits

    done = []
    for name in dict.fromkeys(job.variant for job in jobs):
        recipe = file.variants[name]
        if (recipe.data, recipe.eval.splits) in done:
            continue
        done.append((recipe.data, recipe.eval.splits))
        for split in check_splits(recipe, data_dir=data_dir, fetch=False):
            console.say(
                f"{recipe.data.corpus}: {split} is not at hand; training fetches it first, or says "
                "where to get it"
            )


def _announce(file: "RecipeFile", jobs: Sequence[PlannedRun], as_json: bool) -> None:
    """--dry-run: the trainings, their size, their folder, and what is there already."""
    rows = []
    for job in jobs:
        recipe = file.variants[job.variant]
        rows.append(
            {
                "variant": job.variant,
                "seed": job.seed,
                "state": _state(job.folder),
                "run": str(job.folder),
                "steps": recipe.train.steps,
                "parameters": _parameters(recipe),
            }
        )
    if as_json:
        for row in rows:
            console.write(json.dumps({"event": "planned", "recipe": file.name, **row}) + "\n")
        return
    from attnkit.show.table import Cell, Column, Table

    numbers = ("steps", "parameters")
    columns = [Column(key, "right" if key in numbers else "left") for key in rows[0]]
    cells = tuple(
        tuple(Cell(f"{v:,}" if key in numbers else str(v)) for key, v in row.items())
        for row in rows
    )
    notes = ("parameters: with the vocabulary that the recipe asks for; the data may give less",)
    console.stdout().print(Table(file.name, tuple(columns), cells, notes))


def _parameters(recipe: "Recipe") -> int:
    """Weights of a model of this recipe, built without memory for them."""
    import torch

    from attnkit import models

    size = recipe.tokenizer.size
    with torch.device("meta"):
        model = models.build(recipe.model, (size, size), recipe.data.max_length)
    return sum(weight.numel() for weight in model.parameters())


def _state(folder: Path) -> str:
    """What training again would find there."""
    from attnkit.runs import Run

    run = Run(folder)
    if not run.exists:
        return "new"
    return "done" if run.finished else "begun"


def _explain_memory(error: BaseException, file: "RecipeFile") -> None:
    """Raise the error for running out of memory, with the batch that would need half of it."""
    if out_of_memory(error):
        settings = next(iter(file.variants.values())).train
        advice = console.memory_advice(settings.batch_tokens, settings.accumulate)
        raise MemoryLimitError(f"out of memory: {advice}") from error


def _table(scored: "ScoredEvent", warn: bool) -> None:
    """The comparison, on standard output."""
    from attnkit.show.comparison_tables import tables, warning_lines

    result = scored.json()
    for text in warning_lines(result) if warn else ():
        console.warn(text)
    output.show(tables(result))


def _next_commands(file: "RecipeFile", jobs: Sequence[PlannedRun], out: Path) -> None:
    """What one does with trained runs."""
    runs = [str(out / file.name)] if len(jobs) > 1 else [str(jobs[0].folder)]
    console.say("")
    console.say(f"score again:    {shlex.join(['attnkit', 'eval', *runs, *plugin.flags()])}")
    folder, recipe = str(jobs[0].folder), file.variants[jobs[0].variant]
    if recipe.task == "question-answering":
        words = ["attnkit", "nbce", folder, *plugin.flags(), "--contexts", "passages.jsonl"]
        console.say(f"use one model:  {shlex.join([*words, '--prompts', 'questions.txt'])}")
    else:
        words = ["attnkit", "generate", folder, *plugin.flags()]
        console.say(f"use one model:  {shlex.join(words)} < input.txt")
