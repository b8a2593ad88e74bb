"""Commands on a second device: nothing stays on the CPU that belongs there, and answers agree."""

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

# weights are copied there indeed, though the device has the name of one without values
pytestmark = pytest.mark.filterwarnings("ignore:.*which is a no-op")
SMALL = (
    "data.size=60",
    "data.valid_rows=4",
    "eval.bootstrap=10",
    "eval.splits=[valid]",
    "model.width=16",
    "model.ff=16",
    "search.max_length=3",
    "tokenizer.size=300",
    "train.batch_tokens=400",
    "train.steps=2",
    "train.seeds=[1]",
    "train.valid_every=1",
)
TRAINED: dict[str, tuple[str, ...]] = {
    "summarization/events": (
        "train.precision=fp32",
        "train.accumulate=2",
        "model.layers=1",
        "--variant",
        "gated-delta",
        "--variant",
        "random+vanilla",
    ),
    "long-context/passages": ("train.precision=fp32", "contexts.counts=[2]", "contexts.rows=2"),
}
RUN = "runs/quickstart/scaled-dot/seed-1"
COMMANDS = (
    ("eval", "runs/quickstart", "--metrics", "bleu,perplexity"),
    ("visualize-attn", RUN, "a dog", "--kind", "cross", "--save", "maps.npz"),
    ("probe", "heads", RUN, "--rows", "8"),
    ("probe", "noise", RUN, "--rows", "8", "--sigma", "0.5"),
    ("probe", "entropy", RUN, "--rows", "8"),
    ("probe", "rank", RUN, "--rows", "8"),
    ("align", RUN, "source.txt", "source.txt"),
    ("convert", RUN, "--attention", "linear", "--transfer", "2", "--tune", "2"),
    ("bench", "decode", RUN, "--threads", "1", "--rows", "2"),
)
PASSAGES = (
    "nbce",
    "runs/long-context/passages/base/seed-1",
    "--context",
    "source.txt",
    "--context",
    "other.txt",
    "--prompt",
    "a",
    "--max-length",
    "4",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the commands, with texts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source.txt").write_text("a dog\nthe cat sees two dogs\n", encoding="utf-8")
    (tmp_path / "other.txt").write_text("one\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The second device, which every command takes that is not told another one."""

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
        if getattr(module, "pick_device", None) is pick:  # also where it was imported meanwhile
            vars(module)["pick_device"] = real


def ended(capsys: Any, *words: str, stdin: str = "") -> str:
    """What a command printed that ended well."""
    done = run_cli(capsys, *words, stdin=stdin)
    assert done.code == 0, done.err
    return done.out


@pytest.mark.slow
@pytest.mark.parametrize("recipe", TRAINED)
def test_recipes_train_and_score_there(
    recipe: str, folder: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(capsys, "train", recipe, *SMALL, *TRAINED[recipe])
    manifests = [path.read_text("utf-8") for path in folder.glob("runs/**/seed-1/manifest.json")]
    assert manifests
    assert all(f'"device": "{device}"' in text for text in manifests)
    if recipe != "long-context/passages":
        return
    for baseline in ("cad", "best", "retrieval"):
        ended(capsys, *PASSAGES, "--baseline", baseline, "--trace")
    for search in (("--beam", "3"), ("--sample",)):
        ended(capsys, *PASSAGES, *search)


@pytest.mark.slow
def test_a_run_gives_the_same_outputs_there_as_on_the_cpu(
    folder: Path, device: torch.device, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(capsys, "train", "quickstart", *SMALL, "model.layers=1", "--variant", "scaled-dot")
    for search in (("--beam", "4", "--n-best", "2"), ("--sample",)):
        words, text = ("generate", RUN, *search), "a dog\nthe cat sees two dogs\n"
        there, here = (ended(capsys, *words, *more, stdin=text) for more in ((), ("--device", "cpu")))
        assert there == here
    for command in COMMANDS:
        ended(capsys, *command)


def test_tensors_of_two_devices_do_not_mix(device: torch.device) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    with pytest.raises(RuntimeError, match=r"aten\.add\.Tensor: tensors on two devices"):
        x + torch.ones(3)
    x[:, 1] = 5
    assert x[:, [2, 0]].tolist() == [[2.0, 0.0], [5.0, 3.0]]
    assert x.cpu().tolist() == [[0.0, 5.0, 2.0], [3.0, 5.0, 5.0]]
