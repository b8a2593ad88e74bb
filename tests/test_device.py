"""Where models compute, and how threads share the processor."""

import os
import subprocess
import sys

import pytest

from attnkit.device import SPINS

SHOW = "import os, attnkit.cli as c; c.main(['--version']); print(os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize(
    ("variables", "spins"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_commands_spin_briefly_unless_the_user_says_otherwise(
    variables: dict[str, str], spins: str
) -> None:
    inherited = {
        k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=inherited | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[-1] == spins
