"""`attnkit train`: training of the variants of a recipe, and the table that compares them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.cli import console, options, output
from attnkit.cli.options import Overrides, RecipeName, Variants, check_options, flag, value
from attnkit.device import load_note
from attnkit.distributed import group
from attnkit.errors import RecipeError, UsageError
from attnkit.recipe.values import MAX_INTEGER
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.cli.training_display import Notice
    from attnkit.experiment.settings import TrainingSettings
    from attnkit.experiment.tuning import Tuning
    from attnkit.recipe import RecipeFile
    from attnkit.runs.json_files import Tuned
    from attnkit.train.events import Emit


PRIORITIES = {"run": 2, "parameters": 1}
"""Priorities of columns of --dry-run that are left out on a narrow screen."""


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    variant: Variants = None,
    seed: list[int] | None = value("N", "Use this seed instead of the recipe's. Repeatable."),
    jobs: int = value("N", "Train N runs at a time, each in its own process.", default=1, min=1),
    nproc: options.Processes = 1,
    out: options.Out = Path("runs"),
    fresh: bool = flag("--fresh", "Start over, replacing existing runs."),
    allow_change: bool = flag(
        "--allow-change",
        "Resume a run although its recipe has changed. A finished run can only be "
        "continued for more steps. The manifest records the changes.",
    ),
    tune: str | None = value(
        "KEY=V1,V2,...",
        "Choose the value of a train or model key for each variant on validation data, by a "
        "trial for each value, then train with the chosen value.",
    ),
    tune_steps: int | None = value("N", "Updates of each trial of --tune. [default: train.steps]"),
    dry_run: bool = flag("--dry-run", "Print what would be trained, skipped or refused, and stop."),
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    as_json: bool = flag("--json", "Print events as JSON, one object per line."),
    quiet: bool = flag("--quiet", "Print only the final table.", "-q"),
) -> None:
    """Train every variant of a recipe with every seed, score them, and print the table.

    Finished runs are skipped and interrupted ones resume where they stopped, so you can repeat the
    command at any time. Keys with several values make variants of all combinations. With --jobs N,
    each run gets its share of the cores (or of OMP_NUM_THREADS threads, if set), and a failed run
    does not stop the others. With --nproc N, or under torchrun, N processes train each run together
    (train.parallel). Variants keep a value that --tune chose before.

      attnkit train quickstart
      attnkit train quickstart --jobs 2
      attnkit train translation/multi30k --nproc 2
      attnkit train quickstart train.lr=1e-3,2e-3 model.attention=linear,scaled-dot
      attnkit train quickstart --tune train.lr=1e-3,3e-3,1e-2 --tune-steps 200
      attnkit train translation/multi30k --data-dir corpora --variant vanilla
      attnkit train my.yaml train.steps=200 --seed 1 --seed 2 --out /tmp/runs
    """
    from attnkit.experiment.settings import TrainingSettings

    overrides, variant, seeds = split_arguments(overrides or [], variant or [], seed or [])
    file = _load(recipe, overrides)
    if wrong := [seed for seed in seeds if not 0 <= seed <= MAX_INTEGER]:
        raise UsageError(f"--seed {wrong[0]}: must be between 0 and {MAX_INTEGER}")
    plan = TrainingSettings(
        file=file,
        out=out,
        variants=file.chosen(variant),
        seeds=seeds or None,
        fresh=fresh,
        allow_change=allow_change,
        device=device,
        data_dir=data_dir,
        offline=offline,
    )
    ranks = max(nproc, group.world_size())
    _check_processes(plan, jobs, ranks)
    if tune is None and tune_steps is not None:
        raise UsageError(f"--tune-steps {tune_steps}: needs --tune KEY=V1,V2")
    if not dry_run and options.run_in_processes(nproc):
        return
    plan, tuning = _tuning(plan, recipe, overrides, tune, tune_steps)
    parts = [plan] if tuning is None else [tuning.settings(plan), plan]
    if jobs > (count := sum(len(part.runs()) for part in parts)):
        trials = "" if tuning is None else " and trials"
        text = f"must be at most {count}, the number of runs (variants times seeds){trials}"
        raise UsageError(f"--jobs {jobs}: {text}")
    if dry_run:
        _check_data(plan)
        _dry_run(parts, jobs, ranks, as_json=as_json)
        return
    verbose = not (as_json or quiet)
    if verbose:
        _say_plan(plan, tuning)
    _follow(parts, tuning, jobs, as_json=as_json, quiet=quiet)
    if verbose:
        _next_commands(plan)


def _follow(
    parts: "Sequence[TrainingSettings]", tuning: "Tuning | None", jobs: int, *, as_json: bool, quiet: bool
) -> None:
    """Train the runs of the last part, after the trials if there are any, and display the training."""
    from attnkit.cli.training_display import follow
    from attnkit.show.training_board import Board, BoardRun

    plan = parts[-1]

    def start(emit: "Emit", notice: "Notice") -> None:
        if tuning is None:
            from attnkit.experiment import training

            training.train(plan, emit, jobs=jobs, notice=notice)
        else:
            from attnkit.experiment import tuning as trials

            trials.train(plan, tuning, emit, jobs=jobs, notice=notice)

    lines = tuple(BoardRun(*key) for part in parts for key in part.runs())
    board = Board(plan.file.name, lines, jobs=jobs, busy=load_note)
    spec = next(iter(plan.file.variants.values())).train
    follow(board, start, spec, as_json=as_json, quiet=quiet)


def _load(recipe: str, overrides: Sequence[str], extra: Sequence[str] = ()) -> "RecipeFile":
    from attnkit.recipe import load

    return load(recipe, [*overrides, *extra], option_check=check_options)


def _tuning(
    settings: "TrainingSettings", recipe: str, overrides: Sequence[str], tune: str | None, steps: int | None
) -> "tuple[TrainingSettings, Tuning | None]":
    """Return the settings with the values chosen by earlier trials, and the plan of new trials, or None."""
    from attnkit.experiment.settings import recorded_values

    names = settings.variants or ()
    recorded: dict[str, Tuned] = {}
    if group.is_main_process() and not settings.fresh:
        recorded = recorded_values(settings.file, names, overrides, settings.out)
    recorded = group.broadcast_object(recorded)
    if recorded:
        values = [f"variants.{row}.{entry.key}={entry.value}" for row, entry in recorded.items()]
        settings = replace(settings, file=_load(recipe, overrides, values), tuned=recorded)
    if tune is None:
        return settings, None
    from attnkit.experiment.tuning import Tuning

    tuning = Tuning.plan(partial(_load, recipe, overrides), tune, names, steps)
    if not (settings.fresh or settings.allow_change):
        tuning.check(settings, recorded)
    return settings, tuning


def split_arguments(
    args: Sequence[str], variants: list[str], seeds: list[int]
) -> tuple[list[str], list[str], list[int]]:
    """Return the overrides, variants and seeds; `--variant a b` and `--seed 1 2` are accepted.

    Raises UsageError for any other argument.
    """
    overrides, all_variants, all_seeds = [], list(variants), list(seeds)
    for arg in args:
        if "=" in arg:
            overrides.append(arg)
        elif seeds and arg.isdecimal():
            all_seeds.append(int(arg))
        elif variants and "/" not in arg and "." not in arg:
            all_variants.append(arg)
        else:
            raise UsageError(
                f"{quoted(arg)} is not KEY=VALUE (such as train.steps=200), and one command trains one recipe"
            )
    return overrides, all_variants, all_seeds


def _check_processes(plan: "TrainingSettings", jobs: int, ranks: int) -> None:
    """Raise RecipeError or UsageError if the number of ranks is impossible for a variant or with --jobs."""
    from attnkit.recipe.capability import ranks_issue

    for name in (plan.variants or ()) if ranks > 1 else ():
        if why := ranks_issue(plan.file.variants[name], ranks):
            raise RecipeError(f"{name}: {why}")
    if jobs > 1 and ranks > 1:
        text = "--jobs trains several runs at a time, --nproc and torchrun one run with several processes"
        raise UsageError(f"{text}: use one of the two")


def _say_plan(plan: "TrainingSettings", tuning: "Tuning | None") -> None:
    """Print the number of variants, runs and trials, the folder, and the values that earlier trials chose."""
    counts = {"variant": len(plan.variants or ()), "run": len(plan.runs())}
    counts |= {"trial": len(tuning.trials)} if tuning is not None else {}
    numbers = ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counts.items())
    console.say(f"{plan.file.name}: {numbers}, runs go to {plan.out / plan.file.name}")
    for row, entry in plan.tuned.items() if tuning is None else ():
        console.say(f"{row}: {entry.key}={entry.value}, as tuned before")


def _check_data(plan: "TrainingSettings") -> None:
    """Check for --dry-run, without downloading, the metrics, packages and splits, as training does."""
    from attnkit.data.preparation import check_rows_fit, check_splits
    from attnkit.scoring import check_scorable
    from attnkit.train.log_writers import check_installed

    checked = []
    for name in plan.variants or ():
        recipe = plan.file.variants[name]
        check_scorable(recipe)
        check_installed(recipe)
        check_rows_fit(recipe)
        if (recipe.data, recipe.eval.splits) in checked:
            continue
        checked.append((recipe.data, recipe.eval.splits))
        for split in check_splits(recipe, data_dir=plan.data_dir, fetch=False):
            console.say(
                f"{recipe.data.corpus}: {split} is not available yet; training downloads it first, "
                "or says where to get it"
            )


def _dry_run(parts: "Sequence[TrainingSettings]", jobs: int, ranks: int, *, as_json: bool) -> None:
    """Print for --dry-run each run with its state, number of parameters and folder.

    Raises the error of the first run that cannot be trained.
    """
    from attnkit.device import sharing, threads_each
    from attnkit.experiment.cost import parameters
    from attnkit.experiment.experiment import Experiment
    from attnkit.show.table import Column, Table
    from attnkit.train.events import ignore
    from attnkit.train.signals import StopSignals

    rows, errors, counts = [], [], dict[str, int]()
    experiments = [Experiment(part, StopSignals(), ignore) for part in parts]
    for run in (run for experiment in experiments for run in experiment.runs()):
        state, variant, recipe = run.state(), run.variant, run.recipe
        errors += [state.error] if state.error else []
        if variant not in counts:
            sizes = (recipe.tokenizer.size, recipe.tokenizer.size)
            counts[variant] = parameters(recipe, sizes).total
        row = {
            "variant": variant,
            "seed": run.seed,
            "state": state.text,
            "run": str(run.path),
            "steps": recipe.train.steps,
            "parameters": counts[variant],
        }
        rows.append(row)
        if as_json:
            event = {"event": "planned", "recipe": parts[0].file.name, **row, "state": state.state}
            event |= {"jobs": jobs, "processes": ranks, "threads": threads_each(jobs * ranks)}
            event |= {"resumes_from": state.step, "reason": state.error and str(state.error)}
            output.write_json(event, indent=None)
    if not as_json:
        texts = [
            Column(name, itemgetter(name), align="left", priority=PRIORITIES.get(name, 0), key=name == "seed")
            for name in ("variant", "seed", "state", "run")
        ]
        numbers = [
            Column(name, itemgetter(name), "{:,}", priority=PRIORITIES.get(name, 0))
            for name in ("steps", "parameters")
        ]
        notes = ("parameters: for the vocabulary size of the recipe; small data may yield fewer", sharing(jobs, ranks))
        output.write_tables([Table.of(parts[0].file.name, rows, texts + numbers, notes)], "table")
    for error in errors[1:]:
        console.warn(str(error))
    if errors:
        raise errors[0]


def _next_commands(plan: "TrainingSettings") -> None:
    from attnkit.cli.training_display import command, use_command

    file, planned = plan.file, plan.runs()
    folder, recipe = str(plan.folder(*planned[0])), file.variants[planned[0][0]]
    runs = str(plan.out / file.name) if len(planned) > 1 else folder
    console.say("")
    console.say(f"score again:    {command('eval', runs)}")
    writes = recipe.task not in ("language-modeling", "tagging")
    if writes and len({variant for variant, _ in planned}) > 1:
        console.say(f"see examples:   {command('compare', runs)}")
    console.say(f"use one model:  {use_command(recipe, folder)}")
