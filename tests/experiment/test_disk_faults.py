"""Tests of `attnkit train` on a disk that fails; benchmarks/disk_faults.py tries many more faults."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.disk_faults import ERRORS, PLACES, Attempt, output_digests, prepare, train, try_fault

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Attempt]:
    """Return the folder and the result of a training without faults."""
    folder = tmp_path_factory.mktemp("disk")
    prepare(folder)
    attempt = train(folder / "recipe.yaml", folder / "whole")
    assert attempt.code == 0, attempt.error
    return folder, attempt


@pytest.mark.sampled(7)
@pytest.mark.parametrize("place", PLACES)
def test_training_recovers_from_a_fault_of_the_disk(undisturbed: tuple[Path, Attempt], place: str) -> None:
    folder, attempt = undisturbed
    draw = random.Random(place)
    at = draw.choice([number for number, name in enumerate(attempt.places, start=1) if name == place])
    kind = draw.choice(list(ERRORS))
    expected = output_digests(folder / "whole")
    outcome = try_fault(folder / "recipe.yaml", folder / place[:3], at, kind, place, expected)
    assert not outcome.faults, (at, kind, outcome)


@pytest.mark.slow
def test_training_recovers_from_a_full_file_system() -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    program = [sys.executable, str(ROOT / "benchmarks/disk_faults.py"), "--inside"]
    done = subprocess.run([*namespace, *program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "bit for bit" in done.stdout
