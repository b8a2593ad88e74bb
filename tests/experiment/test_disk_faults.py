"""A disk that fails during `attnkit train`; benchmarks/disk_faults.py tries many more faults."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.disk_faults import ERRORS, PLACES, Attempt, output_digests, prepare, train, try_fault

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Attempt]:
    """The folder and the end of a training without faults."""
    folder = tmp_path_factory.mktemp("disk")
    prepare(folder)
    done = train(folder / "recipe.yaml", folder / "whole")
    assert done.code == 0, done.error
    return folder, done


@pytest.mark.sampled(7)
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_of_the_disk_costs_nothing(whole: tuple[Path, Attempt], place: str) -> None:
    folder, done = whole
    draw = random.Random(place)
    at = draw.choice([at for at, one in enumerate(done.places, start=1) if one == place])
    wanted = output_digests(folder / "whole")
    kind = draw.choice(list(ERRORS))
    found = try_fault(folder / "recipe.yaml", folder / place[:3], at, kind, place, wanted)
    assert not found.faults, (at, kind, found)


@pytest.mark.slow
def test_a_full_file_system_costs_nothing() -> None:
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        allowed = subprocess.run([*own, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("no file system can be mounted here")
    program = [sys.executable, str(ROOT / "benchmarks/disk_faults.py"), "--inside"]
    done = subprocess.run([*own, *program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "bit for bit" in done.stdout
