"""`attnkit train`: run the trainings of a recipe and print the table that compares them."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from attnkit.cli import console, options, output
from attnkit.cli.options import (
    Overrides,
    RecipeName,
    Variants,
    check_options,
    choice,
    chosen,
    flag,
    value,
)  # fmt: skip
from attnkit.errors import MemoryLimitError, StoppedError, UsageError, out_of_memory
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import RecipeFile
    from attnkit.train.events import ScoredEvent


MATCHES = ("params", "time")


class PlannedRun(NamedTuple):
    """One training: a variant with a seed, and its run folder."""

    variant: str
    seed: int
    folder: Path


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    variant: Variants = None,
    seed: Annotated[
        list[int] | None, value("N", "Use this seed instead of the recipe's. Repeatable.")
    ] = None,
    out: options.Out = Path("runs"),
    fresh: Annotated[bool, flag("--fresh", "Start over, replacing existing runs.")] = False,
    allow_change: Annotated[
        bool, flag("--allow-change", "Resume a run although its recipe has changed.")
    ] = False,
    match: Annotated[
        str | None,
        choice(
            "--match",
            MATCHES,
            "Set each variant's feed-forward width so that it has as many "
            "parameters as the baseline (params), or trains as fast (time).",
            "COST",
        ),
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Print what would be trained, and stop.")] = False,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    as_json: Annotated[bool, flag("--json", "Print events as JSON, one object per line.")] = False,
    quiet: Annotated[bool, flag("--quiet", "Print only the final table.", "-q")] = False,
    plugins: options.Plugins = None,
) -> None:
    """Train every variant of a recipe with every seed, score them, and print the table.

    Finished runs are skipped and interrupted ones resume where they stopped, so the same command
    can be repeated at any time.

      attnkit train quickstart
      attnkit train translation/multi30k --data-dir corpora --variant vanilla
      attnkit train my.yaml train.steps=200 --seed 1 --seed 2 --out /tmp/runs
    """
    from attnkit.recipe import load

    settings, variant, seed = _sort_words(overrides or [], variant or [], seed or [])
    file = load(recipe, settings, option_check=check_options)
    if match is not None:
        settings += _matched(
            file, match, variant, out, device, data_dir, offline=offline, fresh=fresh
        )
        file = load(recipe, settings, option_check=check_options)
    jobs = _jobs(file, variant, seed, out)
    if dry_run:
        _check_data(file, jobs, data_dir)
        _announce(file, jobs, as_json)
        return
    talks = not (as_json or quiet)
    variants = list(dict.fromkeys(job.variant for job in jobs))
    if talks:
        counts = {"variant": len(variants), "seed": len(jobs) // len(variants)}
        numbers = ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counts.items())
        console.say(f"{file.name}: {numbers}, runs go to {out / file.name}")
    options = {
        "variants": variants, "seeds": seed or None, "out": out, "fresh": fresh,
        "allow_change": allow_change, "device": device, "data_dir": data_dir, "offline": offline,
    }  # fmt: skip
    scored = _follow(file, jobs, options, as_json=as_json, quiet=quiet)
    if scored is not None and not as_json:
        from attnkit.show.comparison_tables import tables, warning_lines

        result = scored.json()
        for text in warning_lines(result) if not quiet else ():
            console.warn(text)
        output.write_tables(tables(result), "table")
    if talks:
        _next_commands(file, jobs, out)


def _matched(
    file: "RecipeFile",
    match: str,
    variants: Sequence[str],
    out: Path,
    device: str,
    data_dir: Path | None,
    *,
    offline: bool,
    fresh: bool,
) -> list[str]:
    """The KEY=VALUE words that make the variants cost the same; says what changes."""
    from functools import partial

    from attnkit.data.preparation import prepare
    from attnkit.device import pick_device
    from attnkit.experiment import matching

    names, found = chosen(file, variants), list[matching.Match]()
    if match == "params":
        found = list(matching.match_parameters(file, names))
    else:
        found = [] if fresh else list(matching.earlier(file, names, out))
        new = [name for name in names if name not in {one.variant for one in found}]
        data = partial(prepare, data_dir=data_dir, offline=offline)
        found += matching.match_time(file, new, data, pick_device(device))
    for one in found:
        ratio = "as its run began" if one.ratio != one.ratio else f"{one.ratio:.3f} x the baseline"
        (width, ff), (new_width, new_ff) = one.before, one.after
        inner = f", model.ff {ff} -> {new_ff}" if ff != new_ff else ""
        console.say(f"{one.variant}: model.width {width} -> {new_width}{inner} ({match}: {ratio})")
    return [override for one in found for override in one.overrides]


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
            if out_of_memory(error):
                settings = next(iter(file.variants.values())).train
                advice = console.memory_advice(settings.batch_tokens, settings.accumulate)
                raise MemoryLimitError(f"out of memory: {advice}") from error
            raise
        except StoppedError as error:
            raise StoppedError(f"{error}: {console.again(without=['--fresh'])}") from None
    return scored


def _sort_words(
    words: Sequence[str], variants: list[str], seeds: list[int]
) -> tuple[list[str], list[str], list[int]]:
    """The KEY=VALUE words, variants and seeds; `--variant a b` and `--seed 1 2` are understood."""
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
) -> list[PlannedRun]:
    """The trainings that the command line asks for, in the order of the recipe."""
    from attnkit.runs import Run

    names = chosen(file, variants)
    if wrong := [seed for seed in seeds if seed < 0]:
        raise UsageError(f"--seed {wrong[0]}: must be at least 0")
    return [
        PlannedRun(name, seed, Run.find(out, file.name, name, seed))
        for name in names
        for seed in dict.fromkeys(seeds or file.variants[name].train.seeds)
    ]


def _check_data(file: "RecipeFile", jobs: Sequence[PlannedRun], data_dir: Path | None) -> None:
    """--dry-run: what training would say of the splits and metrics; nothing is downloaded."""
    from attnkit.data.preparation import check_splits
    from attnkit.scoring import check_scorable

    done = []
    for name in dict.fromkeys(job.variant for job in jobs):
        recipe = file.variants[name]
        check_scorable(recipe)
        if (recipe.data, recipe.eval.splits) in done:
            continue
        done.append((recipe.data, recipe.eval.splits))
        for split in check_splits(recipe, data_dir=data_dir, fetch=False):
            console.say(
                f"{recipe.data.corpus}: {split} is not available yet; training downloads it first, "
                "or tells you where to get it"
            )


def _announce(file: "RecipeFile", jobs: Sequence[PlannedRun], as_json: bool) -> None:
    """--dry-run: the trainings, their size, their folder, and what is there already."""
    from attnkit.experiment.cost import parameters
    from attnkit.runs import Run

    rows = []
    for job in jobs:
        run, recipe = Run(job.folder), file.variants[job.variant]
        sizes = (recipe.tokenizer.size, recipe.tokenizer.size)
        rows.append(
            {
                "variant": job.variant,
                "seed": job.seed,
                "state": "done" if run.finished else "begun" if run.exists else "new",
                "run": str(job.folder),
                "steps": recipe.train.steps,
                "parameters": parameters(recipe, sizes).total,
            }
        )
    if as_json:
        for row in rows:
            output.write_json({"event": "planned", "recipe": file.name, **row}, indent=None)
        return
    from attnkit.show.table import Cell, Column, Table

    numbers = ("steps", "parameters")
    columns = [Column(key, "right" if key in numbers else "left") for key in rows[0]]
    cells = tuple(
        tuple(Cell(f"{v:,}" if key in numbers else str(v)) for key, v in row.items())
        for row in rows
    )
    notes = ("parameters: for the vocabulary size of the recipe; small data may yield fewer",)
    output.write_tables([Table(file.name, tuple(columns), cells, notes)], "table")


def _next_commands(file: "RecipeFile", jobs: Sequence[PlannedRun], out: Path) -> None:
    """Commands that use the trained runs."""
    from attnkit import mechanisms

    plugins = [word for path in mechanisms.plugged().values() for word in ("--plugin", str(path))]
    runs = [str(out / file.name)] if len(jobs) > 1 else [str(jobs[0].folder)]
    console.say("")
    console.say(f"score again:    {shlex.join(['attnkit', 'eval', *runs, *plugins])}")
    folder, recipe = str(jobs[0].folder), file.variants[jobs[0].variant]
    if recipe.task == "question-answering":
        words = ["attnkit", "nbce", folder, *plugins, "--contexts", "passages.jsonl"]
        console.say(f"use one model:  {shlex.join([*words, '--prompts', 'questions.txt'])}")
    else:
        words = ["attnkit", "generate", folder, *plugins]
        console.say(f"use one model:  {shlex.join(words)} < input.txt")
