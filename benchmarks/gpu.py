"""Checks that need a GPU: every mechanism against float64, five tasks trained, outputs compared with those of a CPU.

    python benchmarks/gpu.py [--parts agreement tasks decoding speeds]
    python benchmarks/gpu.py --device cpu --quick

The first form takes under ten minutes and writes results/gpu.md; the second is a trial of the script and only prints.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from common import arguments, attnkit, environment, facts, publish, say, table
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask
from attnkit.data.preparation import prepare
from attnkit.errors import UsageError
from attnkit.experiment.provenance import gpu
from attnkit.layers import MultiHead
from attnkit.recipe import load, mechanism_registry

ROLES = {"encoder": (False, False), "decoder": (False, True), "cross": (True, False)}
"""Role -> (cross, causal)."""
TASKS = {
    "translation": ("quickstart", "--variant", "scaled-dot"),
    "summarization": ("summarization/events", "--variant", "scaled-dot"),
    "dialogue": ("dialogue/personas", "--variant", "scaled-dot"),
    "long context": ("long-context/passages", "contexts.rows=20", "contexts.counts=[1,4]"),
    "language modeling": ("language-modeling/naive-bayes-chains", "--variant", "transformer"),
}
"""Recipes with embedded corpora, and the variant to train."""
SPEEDS = (
    *("scaled-dot", "linear", "gated-delta", "dynamic-conv", "local", "synthesizer-random"),
    *("synthesizer-dense", "sigmoid", "differential", "entmax", "additive"),
)
LENGTHS = (7, 64, 300)
TOLERANCE = {"fp32": 1e-3, "bf16": 6e-2}
"""Maximum error relative to the largest value."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def agreement(options: argparse.Namespace, _: Path) -> list[str]:
    """Compare each mechanism in each role on the device with float64 on the CPU."""
    rows, count = [], 0
    for word in mechanisms.names():
        if any(option.required for option in mechanisms.facts(word).options.values()):
            continue
        able = mechanism_registry.resolve_capabilities(word, {})
        for role, (cross, causal) in ROLES.items():
            if (cross and not able.cross) or (causal and not able.causal):
                continue
            for precision, limit in TOLERANCE.items():
                error, place = largest_error(word, cross, causal, precision, options.device)
                count += 1
                if not error <= limit:  # also NaN
                    on_cpu = largest_error(word, cross, causal, precision, "cpu")[0]
                    rows.append((word, role, precision, f"{error:.1e}", f"{limit:.0e}", place, f"{on_cpu:.1e}"))
    limits = " and ".join(f"{limit:.0e} ({name})" for name, limit in TOLERANCE.items())
    text = (
        f"{count} pairs of mechanism and role in float32 and bfloat16, lengths {', '.join(map(str, LENGTHS))}, with "
        f"right padding: output and gradient of the input. For {len(rows)}, the error is larger than {limits} of the "
        "largest value."
    )
    head = "mechanism | role | precision | largest error | limit | where | on a CPU"
    return [text, table(head, rows, left=2)] if rows else [text]


def largest_error(word: str, cross: bool, causal: bool, precision: str, device: str) -> tuple[float, str]:
    """Return the largest error of outputs and gradients over the lengths, and where it occurs."""
    found = (0.0, "")
    for length in LENGTHS:
        try:
            exact = passes(word, cross, causal, length, torch.float64, "cpu")
            given = passes(word, cross, causal, length, DTYPES[precision], device)
        except UsageError:
            continue  # the mechanism refuses this length
        except (RuntimeError, NotImplementedError) as error:
            return float("nan"), f"length {length}: {' '.join(str(error).split())[:120]}"
        for name, one, two in zip(("output", "gradient"), exact, given, strict=True):
            distance = float((one - two.double().cpu()).abs().max() / one.abs().max().clamp_min(1e-9))
            if not distance <= found[0]:
                found = (distance, f"{name}, length {length}")
    return found


def passes(word: str, cross: bool, causal: bool, length: int, kind: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Return the output of a layer on two rows, the second with padding, and the gradient of its input."""
    torch.manual_seed(1)
    layer = MultiHead.build(word, 64, 4, 512, cross=cross, causal=causal or None).double().eval()
    x, memory = torch.randn(2, 2, length, 64, dtype=torch.float64)
    layer, x, memory = layer.to(device, kind), x.to(device, kind), memory.to(device, kind)
    valid = (torch.arange(length) < torch.tensor([[length], [max(1, length - 3)]])).to(device)
    x.requires_grad_()
    mask = Mask.cross(valid, length) if cross else Mask.of(valid, length, causal)
    y = layer(x, mask, memory=memory if cross else None).y * valid[..., None]
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    return y.detach(), gradient


def run(*words: str | Path) -> str:
    """Return the standard output of an attnkit command, or its error if it fails."""
    done = subprocess.run(attnkit(*words), env=environment(), capture_output=True, text=True, timeout=600)
    return done.stdout if done.returncode == 0 else f"failed: {done.stderr.strip()[-300:]}"


def tasks(options: argparse.Namespace, folder: Path) -> list[str]:
    """Train each task briefly on the device, and score it."""
    steps, rows = 5 if options.quick else 100, []
    for task, (recipe, *words) in TASKS.items():
        start = time.monotonic()
        words += [f"train.steps={steps}", f"train.valid_every={steps}", "--json", "--device", options.device]
        printed = run("train", recipe, *words, "--out", folder / "runs")
        rows.append((task, f"`{recipe}`", *results(printed), f"{time.monotonic() - start:.0f} s"))
    head = "task | recipe | training loss | validation loss | score | time"
    return [f"{steps} updates each.", table(head, rows, left=2)]


def results(printed: str) -> tuple[str, str, str]:
    """Return the last training and validation loss and the first score, from the events of a training."""
    if printed.startswith("failed"):
        return printed, "", ""
    events = [json.loads(line) for line in printed.splitlines()]
    losses = {event["event"]: event["loss"] for event in events if event["event"] in ("progress", "validated")}
    name, value = next(iter(events[-1]["rows"][0]["metrics"].items()))
    return f"{losses['progress']:.3f}", f"{losses['validated']:.3f}", f"{name} {value['score']:.2f}"


def decoding(options: argparse.Namespace, folder: Path) -> list[str]:
    """Compare outputs and speed of the device with those of the CPU."""
    recipe = next(iter(load("quickstart").variants.values()))
    texts = [row.source for row in prepare(recipe).corpus.rows("test")][: 40 if options.quick else 500]
    (folder / "lines.txt").write_text("\n".join(texts) + "\n")
    rows = []
    for beam in ("1", "5"):
        found = {}
        for device in dict.fromkeys(("cpu", options.device)):
            start = time.monotonic()
            words = (folder / "runs/quickstart/scaled-dot/seed-1", folder / "lines.txt", "--beam", beam)
            found[device] = run("generate", *words, "--device", device).splitlines()
            speed = len(found[device]) / (time.monotonic() - start)
            rows.append((f"beam {beam}", device, f"{speed:.1f}"))
        equal = sum(map(str.__eq__, found["cpu"], found[options.device]))
        rows.append((f"beam {beam}", "equal lines", f"{equal} of {len(found['cpu'])}"))
    return [table("search |  | lines/s", rows, 2)]


def speeds(options: argparse.Namespace, _: Path) -> list[str]:
    """Measure causal attention without projections."""
    lengths, dtype = ("64,128", "float32") if options.quick else ("512,2048,8192", "bfloat16")
    words = ("bench", "attention", *SPEEDS, "--causal", "--lengths", lengths, "--dtype", dtype)
    return [run(*words, "--format", "markdown", "--device", options.device)]


PARTS = {
    "agreement": ("Mechanisms against float64 on the CPU", agreement),
    "tasks": ("A training of five tasks", tasks),
    "decoding": ("Decoding, start of the command included", decoding),
    "speeds": ("Attention alone, causal", speeds),
}


def main() -> None:
    options = arguments(__doc__, device="cuda", quick=False, parts=[*PARTS])
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; try --device cpu --quick")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.parts or PARTS:
            title, part = PARTS[name]
            say(name)
            about, start = facts(options), time.monotonic()
            body = part(options, Path(folder))
            about["device"] = gpu(options.device) if options.device.startswith("cuda") else options.device
            about["time"] = f"{time.monotonic() - start:.0f} s"
            if options.quick:
                print(f"## {title}", *body, about["time"], sep="\n\n")
            else:
                publish("gpu", "attnkit on a GPU", about, body, title, [title for title, _ in PARTS.values()])


if __name__ == "__main__":
    main()
