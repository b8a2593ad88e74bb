"""Tests of checkpoints: complete or absent, verified when loaded, and never executed."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from helpers.faults import FAULTS, FaultyDisk, Killed, use_disk
from torch import Tensor

from attnkit.errors import AttnkitError, DataError, DivergedError, OutputError, OutputPathError
from attnkit.runs import Run, json_files, layout
from attnkit.storage.tensors import check
from attnkit.train import checkpoint

FILES = ("tensors.safetensors", "state.json", "manifest.json")


def values(step: int) -> dict[str, Tensor]:
    """Return a small state with every kind of tensor that training saves."""
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(4, 3, generator=generator)
    return {
        "model.weight": weight,
        "model.tied": weight,
        "model.transposed": torch.randn(3, 5, generator=generator).T,
        "optimizer.weight.exp_avg": torch.randn(4, 3, generator=generator),
        "optimizer.weight.step": torch.tensor(float(step)),
        "half": torch.randn(7, generator=generator).bfloat16(),
        "empty": torch.zeros(0, 2),
        "count": torch.tensor([step, -1]),
        "rng.cpu": generator.get_state()[:64],
    }


def state(step: int) -> dict[str, object]:
    return {"step": step, "position": [3, step], "best": 0.1 + step, "monitor": None}


def load_checked(path: Path, step: int) -> tuple[dict[str, Tensor], dict[str, object]]:
    """Load a checkpoint, and check that names, types and shapes are those saved for a step."""
    tensors, rest = checkpoint.load(path)
    check(path / "tensors.safetensors", tensors, values(step))
    return tensors, rest


def same(path: Path, step: int) -> bool:
    """Return whether a checkpoint holds exactly what was saved for a step."""
    tensors, rest = load_checked(path, step)
    return rest == state(step) and all(torch.equal(tensor, tensors[name]) for name, tensor in values(step).items())


def save_steps(run: Run, steps: range, keep: tuple[int, ...] = ()) -> None:
    run.path.mkdir(exist_ok=True)
    for step in steps:
        run.log.append({"step": step, "loss": 1 / step})
        checkpoint.save(run, step, values(step), state(step), keep)


@pytest.fixture(autouse=True)
def _unsynced() -> Iterator[None]:
    """Do not sync files, which only a loss of power would show."""
    with use_disk(FaultyDisk()):
        yield


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture
def saved(run: Run) -> Path:
    """Save checkpoints of steps 1 and 2, and return the path of the second."""
    save_steps(run, range(1, 3))
    return run.checkpoints / "step-2"


def names(run: Run) -> list[str]:
    return sorted(os.listdir(run.checkpoints))


def test_loaded_state_equals_the_saved_state(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert checkpoint.latest(run) is None
    path = checkpoint.save(run, 7, values(7), state(7))
    assert path == tmp_path / "checkpoints" / "step-7"
    assert checkpoint.latest(run)[:3] == (7, path, ())
    assert same(path, 7)
    assert set(checkpoint.load(path, prefix="model.")[0]) == {"model.weight", "model.tied", "model.transposed"}


def test_tensor_file_equals_that_of_the_safetensors_library(saved: Path) -> None:
    separate = {name: tensor.clone().contiguous() for name, tensor in values(2).items()}
    assert (saved / "tensors.safetensors").read_bytes() == safetensors.torch.save(separate)


def test_loaded_tensors_do_not_follow_later_changes_of_the_file(saved: Path) -> None:
    tensors, _ = checkpoint.load(saved)
    file = saved / "tensors.safetensors"
    with open(file, "r+b") as stream:
        stream.write(b"\xff" * file.stat().st_size)
    assert torch.equal(tensors["model.weight"], values(2)["model.weight"])


def test_two_newest_checkpoints_and_those_in_keep_remain(run: Run) -> None:
    save_steps(run, range(1, 7), keep=(2,))
    assert names(run) == ["step-2", "step-5", "step-6"]


def test_damaged_checkpoints_are_renamed_and_an_older_one_is_used(run: Run) -> None:
    save_steps(run, range(10, 31, 10), keep=(10, 20, 30))
    for step in (20, 30):
        (run.checkpoints / f"step-{step}" / "tensors.safetensors").write_bytes(b"")
    (run.checkpoints / "step-30.damaged").mkdir()
    newest = checkpoint.latest(run)
    assert newest is not None
    assert newest.step == 10
    assert same(newest.path, 10)
    assert names(run) == ["step-10", "step-20.damaged", "step-30.damaged", "step-30.damaged-2"]
    size = (newest.path / "tensors.safetensors").stat().st_size
    assert [message.split(": ", 1)[1] for message in newest.messages] == [
        f"damaged checkpoint (tensors.safetensors: must have {size} bytes, got 0), renamed to "
        f"{name}; resuming from step 10 and repeating {lost} steps"
        for name, lost in [("step-30.damaged-2", 20), ("step-20.damaged", 10)]
    ]


def test_latest_raises_if_all_are_damaged_and_changes_nothing(run: Run, saved: Path) -> None:
    for path in run.checkpoints.iterdir():
        (path / "manifest.json").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match=r"no valid checkpoint \(step-2: manifest.json"):
            checkpoint.latest(run)
    assert names(run) == ["step-1", "step-2"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_state_is_not_saved(run: Run, number: float) -> None:
    save_steps(run, range(1, 2))
    tensors = values(2)
    tensors["model.weight"][0, 0] = number
    with pytest.raises(DivergedError, match=r"step 2: tensor model\.weight holds NaN"):
        checkpoint.save(run, 2, tensors, state(2))
    assert names(run) == ["step-1"]


@pytest.mark.parametrize(
    ("tensors", "state"),
    [
        ({}, {"pair": (1, 2)}),
        ({}, {"best": float("inf")}),
        ({}, {"steps": {1: 2}}),
        ({}, {"path": Path("x")}),
        ({"z": torch.zeros(1, dtype=torch.complex64)}, {}),
    ],
)
def test_state_that_json_or_safetensors_cannot_hold_raises(run: Run, tensors: Any, state: dict[str, object]) -> None:
    run.path.mkdir()
    with pytest.raises((TypeError, ValueError), match="complex64" if tensors else None):
        checkpoint.save(run, 1, tensors, state)


def test_log_is_synced_before_the_checkpoint(run: Run) -> None:
    order: list[str] = []

    class Recording(FaultyDisk):
        def fsync(self, file: object) -> None:
            order.append(Path(file.name).name)  # type: ignore[attr-defined]

    with use_disk(Recording()):
        save_steps(run, range(1, 2))
    assert order == ["metrics.jsonl", *FILES]


HISTORIES = {"with pruning": range(1, 4), "first save": range(0), "second save": range(1, 2)}
"""Steps that are saved before the save that fails."""


def _attempt(folder: Path, history: range, disk: FaultyDisk, step: int) -> BaseException | None:
    """Save the history on a good disk and a step on the given one; return the error of the latter."""
    run = Run(folder)
    save_steps(run, history)
    try:
        with use_disk(disk):
            run.log.append({"step": step, "loss": 0.5})
            checkpoint.save(run, step, values(step + 100), state(step + 100))
    except (AttnkitError, Killed) as error:
        return error
    return None


def _check_after_fault(folder: Path, history: range, step: int) -> None:
    """Check that the next start finds a complete state, old or new, and no leftovers, and can save."""
    run = Run(folder)
    with run.lock():
        newest = checkpoint.latest(run)
    if newest is None:
        assert not history
        run.log.truncate(None)
    else:
        is_new = newest.step == step and checkpoint.load(newest.path)[1] == state(step + 100)
        assert same(newest.path, step + 100 if is_new else history[-1])
        assert newest.messages == ()
        run.log.truncate(newest.step)
        logged = [record["step"] for record in run.log.records()]
        assert logged[: len(history)] == list(history)
        assert logged[-1] == newest.step
    if run.checkpoints.is_dir():
        assert all(layout.STEP.fullmatch(name) for name in names(run))
    assert not list(folder.glob("*.tmp-*"))
    checkpoint.save(run, 50, values(50), state(50))
    assert checkpoint.latest(run)[:3] == (50, run.checkpoints / "step-50", ())


def test_saved_checkpoint_survives_a_loss_of_power(tmp_path: Path) -> None:
    disk = FaultyDisk()
    assert _attempt(tmp_path, range(1, 4), disk, 4) is None
    disk._lose()
    newest = checkpoint.latest(Run(tmp_path))
    assert newest is not None
    assert (newest.step, newest.messages) == (4, ())


@pytest.mark.sampled(15)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_after_any_failed_operation_the_state_is_old_or_new(tmp_path: Path, history: range, fault: str) -> None:
    step = len(history) + 1
    counter = FaultyDisk()
    assert _attempt(tmp_path / "dry", history, counter, step) is None
    assert counter.count >= 20
    expected = {"kill": Killed, "power loss": Killed}.get(
        fault, OutputPathError if "permission" in fault else OutputError
    )
    for operation in range(1, counter.count + 1):
        folder = tmp_path / str(operation)
        error = _attempt(folder, history, FaultyDisk(operation, **FAULTS[fault]), step)
        assert type(error) is expected, (operation, error)
        _check_after_fault(folder, history, step)
        shutil.rmtree(folder)


KILLS = """
import os, random, signal, sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import torch
torch.set_num_threads(1)
from attnkit.train import checkpoint
from attnkit.runs import Run
from test_checkpoint import same, state, values

run = Run(sys.argv[1])
reached = 0
for kill in range(25):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with run.lock():
            step = reached
            while True:
                step += 1
                run.log.append({"step": step})
                checkpoint.save(run, step, values(step), state(step))
                os.write(writer, b"saved")
    assert os.read(reader, 5) == b"saved"
    time.sleep(random.Random(kill).uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    with run.lock():
        newest = checkpoint.latest(run)
        assert newest.messages == () and newest.step > reached and same(newest.path, newest.step)
        reached = newest.step
        run.log.truncate(reached)
        assert [record["step"] for record in run.log.records()] == list(range(1, reached + 1))
        assert not list(run.path.rglob("*.tmp-*"))
print(reached)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    parents = map(str, Path(__file__).parents)
    command = [sys.executable, "-c", KILLS, str(tmp_path), next(parents), next(parents), next(parents)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) >= 25


def forge(path: Path, name: str, data: bytes) -> None:
    """Replace a file, and make the manifest agree with it."""
    (path / name).write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
    manifest.pop("sha256", None)
    (path / "manifest.json").write_text(json.dumps(json_files.seal(manifest)))


class Payload:
    """Object whose unpickling would create a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.folder),))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("form", ["pickle", "archive"])
def test_pickled_code_is_not_executed(
    run: Run, saved: Path, tmp_path: Path, name: str, protocol: int, form: str
) -> None:
    payload = Payload(tmp_path / "executed")
    data = pickle.dumps(payload, protocol)
    if form == "archive":
        torch.save(payload, tmp_path / "file.pt", pickle_protocol=max(2, protocol))
        data = (tmp_path / "file.pt").read_bytes()
    if name == "manifest.json":
        (saved / name).write_bytes(data)
    else:
        forge(saved, name, data)
    with pytest.raises(DataError):
        checkpoint.load(saved)
    checkpoint.latest(run)
    assert not payload.folder.exists()


def _container(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _entry(**changes: object) -> dict[str, object]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


MALFORMED = {
    "empty": b"",
    "no header": (8).to_bytes(8, "little"),
    "endless header": (2**63).to_bytes(8, "little") + b"{}",
    "header of 5 MB": (5 << 20).to_bytes(8, "little") + b"{" + b" " * 100,
    "not JSON": _container(b"[[[["),
    "deep": _container(b"[" * 100_000),
    "list": _container([1, 2]),
    "outside": _container(_entry(data_offsets=[0, 80], shape=[20]), bytes(8)),
    "reversed offsets": _container(_entry(data_offsets=[8, 0]), bytes(8)),
    "hole": _container(_entry(data_offsets=[8, 16]), bytes(16)),
    "overlap": _container(_entry() | {"v": _entry()["w"]}, bytes(8)),
    "negative": _container(_entry(shape=[-2]), bytes(8)),
    "overflow": _container(_entry(shape=[2**40, 2**40]), bytes(8)),
    "unknown type": _container(_entry(dtype="PY"), bytes(8)),
    "type not in torch": _container(_entry(dtype="F6_E2M3", shape=[4, 4]), bytes(8)),
    "two headers": _container(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},' * 2, bytes(8)),
    "trailing data": _container(_entry(), bytes(12)),
    "many": _container({f"t{i}": _entry(shape=[0], data_offsets=[0, 0])["w"] for i in range(9999)}),
}


MALFORMED_STATES = {
    "empty": (b"", "not valid JSON"),
    "list": (b"[]", "must hold a JSON object"),
    "nan": (b'{"best": NaN}', "NaN is not a JSON number"),
    "digits": (b'{"best": ' + b"9" * 5000 + b"}", "not valid JSON"),
    "deep": (b'{"a":' * 100_000, "not valid JSON"),
    "bytes": (b'{"text": "\xff"}', "not valid JSON"),
    "huge": (b'{"text": "' + b"x" * (4 << 20) + b'"}', "longer than"),
}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        *(pytest.param("tensors.safetensors", data, "", id=kind) for kind, data in MALFORMED.items()),
        *(pytest.param("state.json", *case, id=f"state {kind}") for kind, case in MALFORMED_STATES.items()),
    ],
)
def test_malformed_file_raises(saved: Path, name: str, data: bytes, message: str) -> None:
    forge(saved, name, data)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        load_checked(saved, 2)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("create", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_pipe_folder_or_dangling_link_in_place_of_a_file_raises(
    run: Run, saved: Path, name: str, create: Callable[[Path], None]
) -> None:
    (saved / name).unlink()
    create(saved / name)
    with pytest.raises(DataError, match=name):
        checkpoint.load(saved)
    newest = checkpoint.latest(run)
    assert newest is not None
    assert newest.step == 1


def test_checkpoint_of_another_step_or_format_raises(run: Run, saved: Path) -> None:
    renamed = saved.rename(run.checkpoints / "step-9")
    with pytest.raises(DataError, match="belongs to step 2"):
        checkpoint.load(renamed)
    manifest = run.checkpoints / "step-1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(DataError, match="was changed .its SHA-256"):
        checkpoint.load(manifest.parent)
