"""The batch script of `attnkit slurm`, run by stand-ins for srun and scontrol."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.shell import environment

from attnkit.recipe import mechanism_registry

SRUN = """#!/usr/bin/env bash
# every task is a process here, as many as there would be on all nodes
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
TOLD = '#!/usr/bin/env bash\necho "$RANK/$WORLD_SIZE:" "$@"\nexit {code}\n'


def submit(script: Path, *, attnkit: str = ATTNKIT, nodes: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a batch script as a cluster would."""
    programs = script.parent / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "attnkit": attnkit}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    variables = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_ID": str(20000 + os.getpid() % 20000),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", script.name],
        cwd=script.parent,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("words", [["--gpus", "0"], ["--nodes", "4", "--gpus", "8"]])
def test_the_script_is_valid_and_says_what_the_job_needs(words: list[str], cli: Cli, tmp_path: Path) -> None:
    done = cli("slurm", "quickstart", *words, "train.steps=3", "--save", "job.sh")
    assert done.code == 0, done.err
    assert "submit it: sbatch job.sh\n" in done.err
    text = (tmp_path / "job.sh").read_text()
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"]).returncode == 0
    processes = max(int(words[-1]), 1)
    assert f"#SBATCH --ntasks-per-node={processes}\n" in text
    assert (f"--gpus-per-node={processes}\n" in text) == (words[-1] != "0")
    assert "$\n" not in text


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028", "\t", "\x1b"])
def test_the_name_of_the_file_adds_no_line_to_the_script(end: str, cli: Cli, tmp_path: Path) -> None:
    done = cli("slurm", "quickstart", "--save", f"job{end}scancel c.sh")
    assert (done.code, [*tmp_path.iterdir()]) == (2, [])
    assert "would break a line of the script" in done.err


@pytest.mark.slow
def test_two_nodes_train_one_run_together(cli: Cli, tmp_path: Path) -> None:
    small = ["train.steps=2", "train.batch_tokens=400", "train.valid_every=0", "train.precision=fp32", "data.size=300"]
    small += ["data.valid_rows=20", "eval.splits=[valid]", "eval.bootstrap=0", "search.max_length=3"]
    more = ["--nodes", "2", "--gpus", "0", "--", "--variant", "linear", "--out", "runs"]
    done = cli("slurm", "quickstart", *small, "--save", "job.sh", *more)
    assert done.code == 0, done.err
    ran = submit(tmp_path / "job.sh", nodes=2)
    assert ran.returncode == 0, ran.stderr
    manifest = json.loads((tmp_path / "runs/quickstart/linear/seed-1/manifest.json").read_text())
    assert manifest["world_size"] == 2
    assert ran.stdout.count("linear") >= 1
    assert not (tmp_path / "requeued").exists()


@pytest.mark.parametrize(("code", "again"), [(75, True), (1, False)])
def test_a_training_that_was_stopped_in_time_is_queued_again(code: int, again: bool, cli: Cli, tmp_path: Path) -> None:
    cli("slurm", "quickstart", "--nodes", "2", "--gpus", "2", "--save", "job.sh")
    ran = submit(tmp_path / "job.sh", attnkit=TOLD.format(code=code), nodes=2)
    assert ran.returncode == code
    assert sorted(ran.stdout.splitlines()) == [f"{rank}/4: train quickstart" for rank in range(4)]
    assert (tmp_path / "requeued").exists() == again


def test_any_longer_time_and_none_are_taken(cli: Cli) -> None:
    for time in ("0", "5", "4:01", "0:04:01", "0-1", "2-00", "1-00:00"):
        assert cli("slurm", "quickstart", "--time", time).code == 0, time


def test_the_script_has_the_plug_ins_of_its_own_command(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanism_registry, "_plugged", {"own": Path("own.py")})
    assert "train quickstart --plugin own.py ||" in cli("slurm", "quickstart").out
