"""Tests that commands on a second device leave no tensor on the CPU, and give the same outputs as on the CPU."""

import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli import run_cli
from helpers.second_device import DEVICE, second_device

import attnkit.device

# PyTorch warns about a copy to device "meta", which here is a real copy
pytestmark = pytest.mark.filterwarnings("ignore:.*which is a no-op")
SMALL = (
    "data.size=60 data.valid_rows=4 eval.bootstrap=10 eval.splits=[valid] model.width=16 model.ff=16 "
    "search.max_length=3 tokenizer.size=300 train.batch_tokens=400 train.steps=2 train.seeds=[1] train.valid_every=1"
)
EVENTS = "summarization/events train.precision=fp32 train.accumulate=2 model.layers=1"
PASSAGES = "long-context/passages train.precision=fp32 contexts.counts=[2] contexts.rows=2"
RUN = "runs/quickstart/scaled-dot/seed-1"
COMMANDS = (
    "eval runs/quickstart --metrics bleu,perplexity",
    f"visualize-attn {RUN} 'a dog' --kind cross --save maps.npz",
    f"probe heads {RUN} --rows 8",
    f"probe noise {RUN} --rows 8 --sigma 0.5",
    f"probe entropy {RUN} --rows 8",
    f"probe rank {RUN} --rows 8",
    f"align {RUN} source.txt source.txt",
    f"convert {RUN} --attention linear --transfer 2 --tune 2",
    f"bench decode {RUN} --threads 1 --rows 2",
)
NBCE = "nbce runs/long-context/passages/base/seed-1 --context source.txt --context other.txt --prompt a --max-length 4"
TEXT = "a dog\nthe cat sees two dogs\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "other.txt").write_text("one\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Let all commands use the second device, unless they have `--device cpu`."""

    def pick(name: str) -> str:
        return "cpu" if name == "cpu" else str(DEVICE)

    real = attnkit.device.pick_device
    for module in [m for name, m in sys.modules.items() if name.startswith("attnkit")]:
        if getattr(module, "pick_device", None) is real:
            monkeypatch.setattr(module, "pick_device", pick)
    optimizers: Any = import_module("torch.optim.optimizer")
    name = "_get_fused_kernels_supported_devices"
    fused = [*getattr(optimizers, name)(), DEVICE.type]
    monkeypatch.setattr(optimizers, name, lambda: fused)
    with second_device() as found:
        yield found
    for module in [m for name, m in sys.modules.items() if name.startswith("attnkit")]:
        if getattr(module, "pick_device", None) is pick:  # also in modules imported meanwhile
            vars(module)["pick_device"] = real


def succeed(capsys: Any, command: str, stdin: str = "") -> str:
    """Return the output of a command, which must succeed."""
    done = run_cli(capsys, *shlex.split(command), stdin=stdin)
    assert done.code == 0, done.err
    return done.out


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [f"{EVENTS} --variant gated-delta --variant random+vanilla", PASSAGES])
def test_recipes_train_and_score_on_the_second_device(
    recipe: str, folder: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    succeed(capsys, f"train {recipe} {SMALL}")
    manifests = [path.read_text("utf-8") for path in folder.glob("runs/**/seed-1/manifest.json")]
    assert manifests
    assert all(f'"device": "{device}"' in text for text in manifests)
    if recipe == PASSAGES:
        for baseline in ("cad", "best", "retrieval"):
            succeed(capsys, f"{NBCE} --baseline {baseline} --trace")
        for search in ("--beam 3", "--sample"):
            succeed(capsys, f"{NBCE} {search}")


@pytest.mark.slow
def test_a_run_gives_the_same_outputs_as_on_the_cpu(device: torch.device, capsys: pytest.CaptureFixture[str]) -> None:
    succeed(capsys, f"train quickstart {SMALL} model.layers=1 --variant scaled-dot")
    for search in ("--beam 4 --n-best 2", "--sample"):
        command = f"generate {RUN} {search}"
        assert succeed(capsys, command, TEXT) == succeed(capsys, f"{command} --device cpu", TEXT)
    for command in COMMANDS:
        succeed(capsys, command)


def test_mixing_tensors_of_two_devices_raises(device: torch.device) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    with pytest.raises(RuntimeError, match=r"aten\.add\.Tensor: tensors on two devices"):
        x + torch.ones(3)
    x[:, 1] = 5
    assert x[:, [2, 0]].tolist() == [[2.0, 0.0], [5.0, 3.0]]
    assert x.cpu().tolist() == [[0.0, 5.0, 2.0], [3.0, 5.0, 5.0]]
