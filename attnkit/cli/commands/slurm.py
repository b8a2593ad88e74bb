"""`attnkit slurm`: a batch script that trains a recipe on a cluster with Slurm."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from string import Template

from attnkit.cli import console, options, output
from attnkit.cli.options import argument, value
from attnkit.errors import StoppedError, UsageError
from attnkit.recipe import load
from attnkit.text import quoted

TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}", re.ASCII)
"""Slurm's formats: minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]]."""

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
#SBATCH --output=$name-%j.out

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
exit "$$code"
""")
NOT_IN_SCRIPTS = {
    **dict.fromkeys(("jobs", "nproc", "dry_run"), "does not work in a script, whose processes srun starts; remove it"),
    "fresh": "would start over whenever the job is requeued; remove it, and use another --out",
}
"""Parameters of `train` that a script cannot use -> reason."""
AHEAD = 120
"""Number of seconds before the time limit at which Slurm sends SIGTERM."""


def slurm(
    recipe: options.RecipeName,
    words: list[str] | None = argument(
        "WORD", "Further arguments of `attnkit train`: KEY=VALUE, or -- and options.", default=None
    ),
    *,
    nodes: int = value("N", "Machines for each run.", default=1, min=1),
    gpus: int = value("G", "GPUs per machine, one per process; 0: CPUs.", default=1, min=0),
    time: str = value("T", "Time limit as in Slurm: 90, 12:00:00, 2-00.", default="24:00:00"),
    save: Path | None = value("FILE", "Write to this file instead."),
) -> None:
    """Write a batch script that trains a recipe on a cluster with Slurm.

    Each GPU gets one process, and all processes of a job train each run together (train.parallel).
    Before the time limit the training is signaled to stop and saves; the job is requeued and
    resumes. If a process is lost, the others stop: submit the script again.

      attnkit slurm translation/wmt14-en-de --nodes 2 --gpus 8 --save wmt.sh
      attnkit slurm my.yaml --gpus 4 --time 12:00:00 -- --out /scratch/runs --data-dir corpora
    """
    if not TIME.fullmatch(time):
        raise UsageError(f"--time {quoted(time)}: must be as in Slurm, such as 90 or 12:00:00")
    if 0 < _seconds(time) <= 2 * AHEAD:  # 0: no limit; a job with a shorter limit would be requeued forever
        raise UsageError(f"--time {time}: too short, because trainings stop {AHEAD} seconds before this limit")
    if save is not None and not save.name.isprintable():
        raise UsageError(f"--save {quoted(str(save))}: the name would break a line of the script")
    overrides, variants = _check_arguments([recipe, *(words or [])])
    file = load(recipe, overrides)
    file.chosen(variants)
    command = ["attnkit", "train", recipe, *(words or []), *options.plugin_arguments()]
    text = SCRIPT.substitute(
        file=shlex.quote(save.name) if save else "FILE",
        name=f"attnkit-{PurePosixPath(file.name).name}",
        nodes=nodes,
        processes=max(gpus, 1),
        resources=f"#SBATCH --gpus-per-node={gpus}" if gpus else "#SBATCH --exclusive",
        time=time,
        ahead=AHEAD,
        world=nodes * max(gpus, 1),
        stopped=StoppedError.code,
        command=shlex.join(command),
    )
    if save is None:
        console.write(text)
        return
    output.save(save, text)
    console.say(f"submit it: sbatch {shlex.quote(str(save))}")


def _seconds(time: str) -> int:
    """Convert a time in one of Slurm's formats to seconds."""
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    sizes = (3600, 60, 1) if days or len(parts) == 3 else (60, 1)
    return 86400 * int(days or 0) + sum(n * size for n, size in zip(parts, sizes, strict=False))


def _check_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides and variants among the arguments of `attnkit train`.

    Raises UsageError or ParserError if `attnkit train` or the script cannot use an argument.
    """
    from attnkit.cli import load as load_command
    from attnkit.cli.commands.train import split_arguments

    context = load_command("train").make_context("attnkit train", list(arguments))
    given = {
        name: value
        for name, value in context.params.items()
        if value is not None and context.get_parameter_source(name).name == "COMMANDLINE"
    }
    for name, why in NOT_IN_SCRIPTS.items():
        if name in given:
            raise UsageError(f"--{name.replace('_', '-')} {why}")
    overrides, variants, _ = split_arguments(*(list(given.get(name, [])) for name in ("overrides", "variant", "seed")))
    return overrides, variants
