"""`attnkit slurm`: a batch script that trains a recipe on a cluster with Slurm."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from string import Template
from typing import Annotated

from typer import Argument

from attnkit.cli import console, options, output
from attnkit.cli.options import flag, value
from attnkit.errors import StoppedError, UsageError
from attnkit.recipe import load
from attnkit.recipe.sweep import is_sweep
from attnkit.text import quoted

TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}", re.ASCII)
"""Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds; days-hours, with :minutes and
:seconds."""

SCRIPT = Template("""\
#!/usr/bin/env bash
# Submit it from the folder in which `attnkit train` would run, in its environment: sbatch $file
# Options of sbatch on the command line, such as --partition, win over these lines.
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$processes
$resources
#SBATCH --time=$time
#SBATCH --signal=TERM@$ahead
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=$name-$log.out
$array
export MASTER_ADDR MASTER_PORT WORLD_SIZE LOCAL_WORLD_SIZE
MASTER_ADDR=$$(scontrol show hostnames "$$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$$((20000 + SLURM_JOB_ID % 20000))
WORLD_SIZE=$world LOCAL_WORLD_SIZE=$processes

# each task of srun is a rank; its number is known only where it runs
code=0
srun bash -c 'RANK=$$SLURM_PROCID LOCAL_RANK=$$SLURM_LOCALID exec "$$@"' rank \\
  $command || code=$$?

# $stopped: stopped ahead of the time limit, with everything saved
if [ "$$code" -eq $stopped ]; then
  scontrol requeue "$$SLURM_JOB_ID"
fi
$table
exit "$$code"
""")
ARRAY = Template("""\
#SBATCH --array=0-$last

# a run for each job of the array
runs=(
$runs
)
read -ra run <<< "$${runs[$$SLURM_ARRAY_TASK_ID]}"
""")
WORDS = ("overrides", "variant", "seed")
"""Parameters of `train` that words without an option may belong to."""
PLACES = {"--out": "out", "--data-dir": "data_dir", "--plugin": "plugins"}
"""Options of `train` that `eval` needs as well."""
NOT_IN_SCRIPTS = {
    **dict.fromkeys(
        ("jobs", "nproc", "dry_run"),
        "is not for a script, whose processes srun starts; leave it out",
    ),
    "fresh": "would begin again whenever the job is requeued: leave it out, and use another --out",
}
"""Parameters of `train` that a script cannot have, and why."""
AHEAD = 120
"""Seconds before the limit at which trainings are asked to stop."""


def slurm(
    recipe: options.RecipeName,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="WORD",
            help="Further arguments of `attnkit train`: KEY=VALUE, or -- and options.",
        ),
    ] = None,
    *,
    nodes: Annotated[int, value("N", "Machines for each run.", min=1)] = 1,
    gpus: Annotated[int, value("G", "GPUs per machine, one per process; 0: CPUs.", min=0)] = 1,
    time: Annotated[str, value("T", "Time limit as in Slurm: 90, 12:00:00, 2-00.")] = "24:00:00",
    array: Annotated[
        bool, flag("--array", "One job for each variant and seed, side by side.")
    ] = False,
    save: Annotated[Path | None, value("FILE", "Write to this file instead.")] = None,
) -> None:
    """Write a batch script that trains a recipe on a cluster with Slurm.

    Each GPU gets one process, and all processes of a job train each run together (train.parallel).
    Before the time limit the training is signalled to stop and saves; the job is requeued and
    resumes. If a process is lost, the others stop: submit the script again.

      attnkit slurm translation/wmt14-en-de --nodes 2 --gpus 8 --save wmt.sh
      attnkit slurm translation/multi30k train.seeds=[1,2,3] --array --save multi30k.sh
      attnkit slurm my.yaml --gpus 4 --time 12:00:00 -- --out /scratch/runs --data-dir corpora
    """
    if not TIME.fullmatch(time):
        raise UsageError(f"--time {quoted(time)}: must be as in Slurm, such as 90 or 12:00:00")
    if 0 < _seconds(time) <= 2 * AHEAD:  # Slurm: 0 is no limit
        raise UsageError(f"--time {time}: too short, as trainings stop {AHEAD} seconds before it")
    if save is not None and not save.name.isprintable():
        raise UsageError(f"--save {quoted(str(save))}: the name would break a line of the script")
    settings, variants, places = _checked([recipe, *(words or [])], array=array)
    file = load(recipe, settings)
    file.chosen(variants)
    swept = ["--yes"] if file.swept and "--yes" not in (words or []) else []  # nobody is asked
    command = ["attnkit", "train", recipe, *(words or []), *swept]
    runs = [
        f"--variant {name} --seed {seed}"
        for name, variant in file.variants.items()
        for seed in variant.train.seeds
    ]
    name = f"attnkit-{PurePosixPath(file.name).name}"
    text = SCRIPT.substitute(
        file=shlex.quote(save.name) if save else "FILE",
        name=name,
        nodes=nodes,
        processes=max(gpus, 1),
        resources=f"#SBATCH --gpus-per-node={gpus}" if gpus else "#SBATCH --exclusive",
        time=time,
        ahead=AHEAD,
        log="%A-%a" if array else "%j",
        world=nodes * max(gpus, 1),
        array=_array(runs) if array else "",
        stopped=StoppedError.code,
        command=shlex.join(command) + (' "${run[@]}"' if array else ""),
        table=_table(recipe, [*filter(is_sweep, settings), *places]) if array else "",
    )
    text = re.sub(r"\n{3,}", "\n\n", text)
    if save is None:
        console.write(text)
        return
    output.save(save, text)
    what = f"{len(runs)} jobs" if array else "1 job"
    console.say(f"submit it: sbatch {shlex.quote(str(save))} ({what})")


def _seconds(time: str) -> int:
    """A time of one of Slurm's forms."""
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not days and len(parts) < 3:
        parts.insert(0, 0)
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _checked(words: Sequence[str], *, array: bool) -> tuple[list[str], list[str], list[str]]:
    """Of the words for `attnkit train`: overrides, variants, and options that `eval` needs, too.

    Raises:
        UsageError, ParserError: `attnkit train` or the script cannot use one.
    """
    from attnkit.cli import load as load_command
    from attnkit.cli.commands.train import sort_words

    given = load_command("train").make_context("attnkit train", list(words))
    named = {
        name: value
        for name, value in given.params.items()
        if value is not None and given.get_parameter_source(name).name == "COMMANDLINE"
    }
    for name, why in NOT_IN_SCRIPTS.items():
        if name in named:
            raise UsageError(f"--{name.replace('_', '-')} {why}")
    if array and (unfit := {"variant", "seed", "tune"} & named.keys()):
        raise UsageError(
            f"--array makes a job of each variant and seed, side by side: leave --{min(unfit)} out"
        )
    settings, variants, _ = sort_words(*(list(named.get(name, [])) for name in WORDS))
    places = list[str]()
    for option, name in PLACES.items():
        found = named.get(name, [])
        for one in [found] if isinstance(found, Path) else found:
            places += [option, str(one)]
    return settings, variants, places


def _array(runs: Sequence[str]) -> str:
    lines = "\n".join(f"  {shlex.quote(run)}" for run in runs)
    return ARRAY.substitute(last=len(runs) - 1, runs=lines)


def _table(recipe: str, words: Sequence[str]) -> str:
    """Lines that score and compare what is trained so far; the last job has the whole table."""
    again = shlex.join(["attnkit", "eval", recipe, *words])
    return f'if [ "$code" -eq 0 ]; then\n  {again}\nfi\n'
