"""Checkpoints: whole or absent, never silently wrong, never executed."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers.faults import FAULTS, FaultyDisk, Killed, use_disk
from torch import Tensor

from attnkit.errors import AttnkitError, DataError, DivergedError, OutputError, OutputPathError
from attnkit.runs import Run, json_files, layout
from attnkit.storage.tensors import check
from attnkit.train import checkpoint


def values(step: int) -> dict[str, Tensor]:
    """A small state with every kind of tensor that training saves."""
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(4, 3, generator=generator)
    return {
        "model.weight": weight,
        "model.tied": weight,
        "model.turned": torch.randn(3, 5, generator=generator).T,
        "optimizer.weight.exp_avg": torch.randn(4, 3, generator=generator),
        "optimizer.weight.step": torch.tensor(float(step)),
        "half": torch.randn(7, generator=generator).bfloat16(),
        "empty": torch.zeros(0, 2),
        "count": torch.tensor([step, -1]),
        "rng.cpu": generator.get_state()[:64],
    }


def state(step: int) -> dict[str, object]:
    """The part of the state that is not tensors."""
    return {"step": step, "position": [3, step], "best": 0.1 + step, "monitor": None}


def load_checked(path: Path, step: int) -> tuple[dict[str, Tensor], dict[str, object]]:
    """A checkpoint, refused where names, types or shapes are not those saved for a step."""
    tensors, rest = checkpoint.load(path)
    check(path / "tensors.safetensors", tensors, values(step))
    return tensors, rest


def same(path: Path, step: int) -> bool:
    """Whether a checkpoint holds, bit for bit, what was saved for a step."""
    tensors, rest = load_checked(path, step)
    return rest == state(step) and all(
        tensor.dtype == tensors[name].dtype and torch.equal(tensor, tensors[name])
        for name, tensor in values(step).items()
    )


def fill(run: Run, steps: range, keep: tuple[int, ...] = ()) -> None:
    """Log and save some steps."""
    run.path.mkdir(exist_ok=True)
    for step in steps:
        run.log.append({"step": step, "loss": 1 / step})
        checkpoint.save(run, step, values(step), state(step), keep)


@pytest.fixture(autouse=True)
def _unsynced() -> Iterator[None]:
    """A good disk that is not synced, which only a loss of power would show."""
    with use_disk(FaultyDisk()):
        yield


def names(run: Run) -> list[str]:
    """What is in the folder of checkpoints."""
    return sorted(os.listdir(run.checkpoints))


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert checkpoint.latest(run) is None
    path = checkpoint.save(run, 7, values(7), state(7))
    assert path == tmp_path / "checkpoints" / "step-7"
    assert checkpoint.latest(run)[:3] == (7, path, ())
    assert same(path, 7)


def test_the_tensor_file_is_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    path = checkpoint.save(Run(tmp_path), 1, values(1), {})
    own = {name: tensor.clone().contiguous() for name, tensor in values(1).items()}
    assert (path / "tensors.safetensors").read_bytes() == safetensors.torch.save(own)


def test_a_prefix_selects_tensors(tmp_path: Path) -> None:
    path = checkpoint.save(Run(tmp_path), 1, values(1), {})
    tensors, _ = checkpoint.load(path, prefix="model.")
    assert set(tensors) == {"model.weight", "model.tied", "model.turned"}


def test_loaded_tensors_do_not_follow_later_changes_of_the_file(tmp_path: Path) -> None:
    path = checkpoint.save(Run(tmp_path), 1, values(1), {})
    tensors, _ = checkpoint.load(path)
    file = path / "tensors.safetensors"
    with open(file, "r+b") as stream:
        stream.write(b"\xff" * file.stat().st_size)
    assert torch.equal(tensors["model.weight"], values(1)["model.weight"])


def test_the_two_newest_and_those_to_keep_remain(tmp_path: Path) -> None:
    run = Run(tmp_path)
    fill(run, range(1, 7), keep=(2,))
    assert names(run) == ["step-2", "step-5", "step-6"]


def test_a_damaged_checkpoint_is_renamed_and_reported_and_the_older_used(tmp_path: Path) -> None:
    run = Run(tmp_path)
    fill(run, range(10, 31, 10), keep=(10, 20, 30))
    for step in (20, 30):
        (run.checkpoints / f"step-{step}" / "tensors.safetensors").write_bytes(b"")
    (run.checkpoints / "step-30.damaged").mkdir()
    found = checkpoint.latest(run)
    assert found is not None
    assert found.step == 10
    assert same(found.path, 10)
    assert names(run) == ["step-10", "step-20.damaged", "step-30.damaged", "step-30.damaged-2"]
    assert [message.split(": ", 1)[1] for message in found.messages] == [
        f"damaged checkpoint (tensors.safetensors: must have {size} bytes, got 0), renamed to "
        f"{name}; resuming from step 10 and repeating {lost} steps"
        for size, name, lost in [
            (_size(run, "step-10"), "step-30.damaged-2", 20),
            (_size(run, "step-10"), "step-20.damaged", 10),
        ]
    ]


def _size(run: Run, name: str) -> int:
    return (run.checkpoints / name / "tensors.safetensors").stat().st_size


def test_when_all_are_damaged_it_says_so_and_touches_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    fill(run, range(1, 3))
    for step in (1, 2):
        (run.checkpoints / f"step-{step}" / "manifest.json").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match=r"no valid checkpoint \(step-2: manifest.json"):
            checkpoint.latest(run)
    assert names(run) == ["step-1", "step-2"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_state_that_is_not_finite_is_never_saved(tmp_path: Path, bad: float) -> None:
    run = Run(tmp_path)
    fill(run, range(1, 2))
    broken = values(2)
    broken["model.weight"][0, 0] = bad
    with pytest.raises(DivergedError, match=r"step 2: tensor model\.weight holds NaN"):
        checkpoint.save(run, 2, broken, state(2))
    assert names(run) == ["step-1"]


@pytest.mark.parametrize("wrong", [{"pair": (1, 2)}, {"best": float("inf")}, {"steps": {1: 2}}, {"path": Path("x")}])
def test_a_state_that_json_would_change_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises((TypeError, ValueError)):
        checkpoint.save(Run(tmp_path), 1, {}, wrong)


def test_a_tensor_without_a_safetensors_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="complex64"):
        checkpoint.save(Run(tmp_path), 1, {"z": torch.zeros(1, dtype=torch.complex64)}, {})


def test_the_log_is_on_disk_before_the_checkpoint(tmp_path: Path) -> None:
    order: list[str] = []

    class Watched(FaultyDisk):
        def fsync(self, file: object) -> None:
            order.append(Path(file.name).name)  # type: ignore[attr-defined]

    with use_disk(Watched()):
        fill(Run(tmp_path), range(1, 2))
    assert order == ["metrics.jsonl", "tensors.safetensors", "state.json", "manifest.json"]


BEFORE = {"with pruning": range(1, 4), "first save": range(0), "second save": range(1, 2)}


def _attempt(folder: Path, before: range, disk: FaultyDisk, step: int) -> BaseException | None:
    """A history of saves on a good disk, then one on the given disk; what that one raised."""
    run = Run(folder)
    fill(run, before)
    try:
        with use_disk(disk):
            run.log.append({"step": step, "loss": 0.5})
            checkpoint.save(run, step, values(step + 100), state(step + 100))
    except (AttnkitError, Killed) as error:
        return error
    return None


def _check_after_fault(folder: Path, before: range, step: int) -> None:
    """The next start finds the old or the new state whole, and no leftovers; then it can save."""
    run = Run(folder)
    with run.lock():
        found = checkpoint.latest(run)
    if found is None:
        assert not before
        run.log.truncate(None)
    else:
        new = found.step == step and checkpoint.load(found.path)[1] == state(step + 100)
        assert same(found.path, step + 100 if new else before[-1])
        assert found.messages == ()
        run.log.truncate(found.step)
        kept = [record["step"] for record in run.log.records()]
        assert kept[: len(before)] == list(before)
        assert kept[-1] == found.step
    if run.checkpoints.is_dir():
        assert all(layout.STEP.fullmatch(name) for name in names(run))
    assert not list(folder.glob("*.tmp-*"))
    checkpoint.save(run, 50, values(50), state(50))
    assert checkpoint.latest(run)[:3] == (50, run.checkpoints / "step-50", ())


def test_what_was_saved_survives_a_loss_of_power(tmp_path: Path) -> None:
    disk = FaultyDisk()
    assert _attempt(tmp_path, range(1, 4), disk, 4) is None
    disk._lose()
    found = checkpoint.latest(Run(tmp_path))
    assert found is not None
    assert (found.step, found.messages) == (4, ())


@pytest.mark.sampled(15)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("history", BEFORE)
def test_whatever_operation_fails_the_old_or_the_new_state_is_there(tmp_path: Path, history: str, fault: str) -> None:
    before = BEFORE[history]
    step = len(before) + 1
    counter = FaultyDisk()
    assert _attempt(tmp_path / "dry", before, counter, step) is None
    assert counter.count >= 20
    expected = {"kill": Killed, "power loss": Killed}.get(
        fault, OutputPathError if "permission" in fault else OutputError
    )
    for at in range(1, counter.count + 1):
        folder = tmp_path / str(at)
        error = _attempt(folder, before, FaultyDisk(at, **FAULTS[fault]), step)
        assert type(error) is expected, (at, error)
        _check_after_fault(folder, before, step)
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
    ears, mouth = os.pipe()
    child = os.fork()
    if not child:
        with run.lock():
            step = reached
            while True:
                step += 1
                run.log.append({"step": step})
                checkpoint.save(run, step, values(step), state(step))
                os.write(mouth, b"saved")
    assert os.read(ears, 5) == b"saved"
    time.sleep(random.Random(kill).uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ears)
    os.close(mouth)
    with run.lock():
        found = checkpoint.latest(run)
        assert found.messages == () and found.step > reached and same(found.path, found.step)
        reached = found.step
        run.log.truncate(reached)
        assert [record["step"] for record in run.log.records()] == list(range(1, reached + 1))
        assert not list(run.path.rglob("*.tmp-*"))
print(reached)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", KILLS, str(tmp_path), str(here), str(here.parent)]
    done = subprocess.run([*command, str(here.parents[1])], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 25


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, steps 1 and 2."""
    folder = tmp_path_factory.mktemp("run")
    fill(Run(folder), range(1, 3))
    return folder


FILES = ("tensors.safetensors", "state.json", "manifest.json")


def forge(path: Path, name: str, data: bytes) -> None:
    """Replace a file, and make the manifest agree."""
    (path / name).write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
    manifest.pop("sha256", None)
    (path / "manifest.json").write_text(json.dumps(json_files.seal(manifest)))


class Payload:
    """Unpickling this would make the canary file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.canary),))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("form", ["pickle", "archive"])
def test_no_payload_is_ever_executed(pristine: Path, tmp_path: Path, name: str, protocol: int, form: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(pristine, copy)
    path = copy / "checkpoints" / "step-2"
    data = pickle.dumps(Payload(tmp_path / "canary"), protocol)
    if form == "archive":
        torch.save(Payload(tmp_path / "canary"), tmp_path / "file.pt", pickle_protocol=max(2, protocol))
        data = (tmp_path / "file.pt").read_bytes()
    if name == "manifest.json":
        (path / name).write_bytes(data)
    else:
        forge(path, name, data)
    with pytest.raises(DataError):
        checkpoint.load(path)
    checkpoint.latest(Run(copy))
    assert not (tmp_path / "canary").exists()


def _container(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def _entry(**changes: object) -> dict[str, object]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


HOSTILE = {
    "nothing": b"",
    "no header": (8).to_bytes(8, "little"),
    "endless header": (2**63).to_bytes(8, "little") + b"{}",
    "header of 5 MB": (5 << 20).to_bytes(8, "little") + b"{" + b" " * 100,
    "not JSON": _container(b"[[[["),
    "deep": _container(b"[" * 100_000),
    "list": _container([1, 2]),
    "outside": _container(_entry(data_offsets=[0, 80], shape=[20]), bytes(8)),
    "backwards": _container(_entry(data_offsets=[8, 0]), bytes(8)),
    "hole": _container(_entry(data_offsets=[8, 16]), bytes(16)),
    "overlap": _container(_entry() | {"v": _entry()["w"]}, bytes(8)),
    "negative": _container(_entry(shape=[-2]), bytes(8)),
    "overflow": _container(_entry(shape=[2**40, 2**40]), bytes(8)),
    "unknown type": _container(_entry(dtype="PY"), bytes(8)),
    "type not in torch": _container(_entry(dtype="F6_E2M3", shape=[4, 4]), bytes(8)),
    "twice": _container(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},' * 2, bytes(8)),
    "rest": _container(_entry(), bytes(12)),
    "many": _container({f"t{i}": _entry(shape=[0], data_offsets=[0, 0])["w"] for i in range(9999)}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_tensor_file_is_refused(pristine: Path, tmp_path: Path, kind: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(pristine, copy)
    path = copy / "checkpoints" / "step-2"
    forge(path, "tensors.safetensors", HOSTILE[kind])
    with pytest.raises(DataError, match="tensors.safetensors"):
        load_checked(path, 2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must hold a JSON object"),
        (b'{"best": NaN}', "NaN is not a JSON number"),
        (b'{"best": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b'{"text": "\xff"}', "not valid JSON"),
        (b'{"text": "' + b"x" * (4 << 20) + b'"}', "longer than"),
    ],
    ids=["empty", "list", "nan", "digits", "deep", "bytes", "huge"],
)
def test_a_hostile_state_is_refused(pristine: Path, tmp_path: Path, data: bytes, reason: str) -> None:
    copy = tmp_path / "run"
    shutil.copytree(pristine, copy)
    path = copy / "checkpoints" / "step-2"
    forge(path, "state.json", data)
    with pytest.raises(DataError, match=reason):
        checkpoint.load(path)


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_or_folder_or_dangling_link_in_place_of_a_file_is_refused(
    pristine: Path, tmp_path: Path, name: str
) -> None:
    for number, make in enumerate((os.mkfifo, os.mkdir, lambda path: os.symlink(path, path))):
        copy = tmp_path / str(number)
        shutil.copytree(pristine, copy)
        path = copy / "checkpoints" / "step-2"
        (path / name).unlink()
        make(path / name)
        with pytest.raises(DataError, match=name):
            checkpoint.load(path)
        found = checkpoint.latest(Run(copy))
        assert found is not None
        assert found.step == 1


def test_a_checkpoint_of_another_step_or_format_is_refused(pristine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(pristine, copy)
    (copy / "checkpoints" / "step-2").rename(copy / "checkpoints" / "step-9")
    with pytest.raises(DataError, match="belongs to step 2"):
        checkpoint.load(copy / "checkpoints" / "step-9")
    manifest = copy / "checkpoints" / "step-1" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 2', '"format": 3'))
    with pytest.raises(DataError, match="was changed .its SHA-256"):
        checkpoint.load(manifest.parent)
