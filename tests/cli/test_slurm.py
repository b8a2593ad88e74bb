"""Tests of the batch script of `attnkit slurm`, with fake srun and scontrol commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.shell import environment

from attnkit.recipe import mechanism_registry
from attnkit.runs import Run

SRUN = """#!/usr/bin/env bash
# every task of every node is a local process
tasks=()
for node in $(seq 0 $((SLURM_NNODES - 1))); do
  for local in $(seq 0 $((LOCAL_WORLD_SIZE - 1))); do
    SLURM_PROCID=$((node * LOCAL_WORLD_SIZE + local)) SLURM_LOCALID=$local "$@" &
    tasks+=($!)
  done
done
highest=0
for task in "${tasks[@]}"; do
  code=0; wait "$task" || code=$?
  [ "$code" -gt "$highest" ] && highest=$code
done
exit "$highest"
"""
SCONTROL = """#!/usr/bin/env bash
if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> requeued; fi
"""
ATTNKIT = f'#!/usr/bin/env bash\nexec {sys.executable} -m attnkit "$@"\n'
FAKE_ATTNKIT = '#!/usr/bin/env bash\necho "$RANK/$WORLD_SIZE:" "$@"\nexit {code}\n'


def submit(attnkit: str = ATTNKIT) -> subprocess.CompletedProcess[str]:
    """Run job.sh as a cluster would on two nodes."""
    programs = Path("bin").absolute()
    programs.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "attnkit": attnkit}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_ID": str(20000 + os.getpid() % 20000),
    }
    return subprocess.run(
        ["bash", "job.sh"], env=environment(**variables), capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("words", [["--gpus", "0"], ["--nodes", "4", "--gpus", "8"]])
def test_script_is_valid_and_requests_resources(words: list[str], cli: Cli) -> None:
    done = cli("slurm", "quickstart", *words, "train.steps=3", "--save", "job.sh")
    assert "submit it: sbatch job.sh\n" in done.err
    text = Path("job.sh").read_text()
    assert subprocess.run(["bash", "-n", "job.sh"]).returncode == 0
    processes = max(int(words[-1]), 1)
    assert f"#SBATCH --ntasks-per-node={processes}\n" in text
    assert (f"--gpus-per-node={processes}\n" in text) == (words[-1] != "0")
    assert "$\n" not in text


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028", "\t", "\x1b"])
def test_file_name_adds_no_line_to_the_script(end: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("slurm", "quickstart", "--save", f"job{end}scancel c.sh", code=2)
    assert "would break a line of the script" in done.err
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_two_nodes_train_one_run_together(cli: Cli) -> None:
    small = ["train.steps=2", "train.batch_tokens=400", "train.valid_every=0", "train.precision=fp32", "data.size=300"]
    small += ["data.valid_rows=20", "eval.splits=[valid]", "eval.bootstrap=0", "search.max_length=3"]
    more = ["--nodes", "2", "--gpus", "0", "--", "--variant", "linear", "--out", "runs"]
    cli("slurm", "quickstart", *small, "--save", "job.sh", *more)
    done = submit()
    assert done.returncode == 0, done.stderr
    assert Run.open("runs/quickstart/linear/seed-1").manifest.world_size == 2
    assert "linear" in done.stdout
    assert not Path("requeued").exists()


@pytest.mark.parametrize(("code", "requeued"), [(75, True), (1, False)])
def test_stopped_training_is_requeued(code: int, requeued: bool, cli: Cli) -> None:
    cli("slurm", "quickstart", "--nodes", "2", "--gpus", "2", "--save", "job.sh")
    done = submit(FAKE_ATTNKIT.format(code=code))
    assert done.returncode == code
    assert sorted(done.stdout.splitlines()) == [f"{rank}/4: train quickstart" for rank in range(4)]
    assert Path("requeued").exists() == requeued


@pytest.mark.parametrize("time", ["0", "5", "4:01", "0:04:01", "0-1", "2-00", "1-00:00"])
def test_long_enough_or_unlimited_time_is_accepted(time: str, cli: Cli) -> None:
    cli("slurm", "quickstart", "--time", time)


def test_script_has_the_plug_ins_of_the_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism_registry, "_plugged", {"own": Path("own.py")})
    assert "train quickstart --plugin own.py ||" in cli("slurm", "quickstart").out
