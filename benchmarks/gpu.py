"""What only a GPU can show: every mechanism against float64, five tasks trained, outputs compared.

python benchmarks/gpu.py                       some minutes; writes results/gpu.md
python benchmarks/gpu.py --parts speeds        this section alone
python benchmarks/gpu.py --device cpu --quick  a trial of the script itself; prints only
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from common import attnkit, command, environment, publish_part, say, table, versions
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask
from attnkit.errors import UsageError
from attnkit.experiment.provenance import gpu
from attnkit.layers import MultiHead
from attnkit.recipe import mechanism_registry

ROLES = {"encoder": (False, False), "decoder": (False, True), "cross": (True, False)}
"""Role -> (cross, causal)."""
TASKS: dict[str, tuple[str, ...]] = {
    "translation": ("quickstart", "--variant", "scaled-dot"),
    "summarization": ("summarization/events", "--variant", "scaled-dot"),
    "dialogue": ("dialogue/personas", "--variant", "scaled-dot"),
    "long context": ("long-context/passages", "contexts.rows=20", "contexts.counts=[1,4]"),
    "language modelling": ("language-modeling/naive-bayes-chains", "--variant", "transformer"),
}
"""Recipes with embedded corpora, and what is trained of them."""
SPEEDS = (
    "scaled-dot",
    "linear",
    "gated-delta",
    "dynamic-conv",
    "local",
    "synthesizer-random",
    "synthesizer-dense",
    "sigmoid",
    "differential",
    "entmax",
    "additive",
)
TITLES = {
    "agreement": "Mechanisms against float64 on the CPU",
    "tasks": "A training of five tasks",
    "decoding": "Decoding, start of the command included",
    "speeds": "Attention alone, causal",
}
"""Part -> heading of its section."""
LENGTHS = (7, 64, 300)
TOLERANCE = {"fp32": 1e-3, "bf16": 6e-2}
"""Largest error beside the largest value."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    """Read the arguments, run the parts, and write each one's section of the report."""
    parts = (agreement, tasks, decoding, speeds)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes; writes no report")
    parser.add_argument("--note", help="what else the report should say, as what ran beside")
    parser.add_argument("--parts", nargs="+", choices=[one.__name__ for one in parts])
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; try --device cpu --quick")
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            if options.parts and part.__name__ not in options.parts:
                continue
            start = time.monotonic()
            say(part.__name__)
            lines = part(options, Path(folder))
            taken = f"{time.monotonic() - start:.0f} s"
            facts = {
                "command": f"`{command(options)}`",
                "versions": versions("attnkit", "torch"),
                "device": gpu(options.device) if options.device.startswith("cuda") else options.device,
                "this part took": taken,
                **({"note": options.note} if options.note else {}),
            }
            if options.quick:
                print(f"## {TITLES[part.__name__]}", *lines, taken, sep="\n")
            else:
                title = TITLES[part.__name__]
                publish_part("gpu", "attnkit on a GPU", title, [*TITLES.values()], facts, lines)


def agreement(options: argparse.Namespace, _: Path) -> list[str]:
    """Each mechanism in each role on the device, against float64 on the CPU."""
    rows, count = [], 0
    for word in mechanisms.names():
        needed = any(option.required for option in mechanisms.facts(word).options.values())
        if needed:
            continue
        for role, (cross, causal) in ROLES.items():
            able = mechanism_registry.resolve_capabilities(word, {})
            if (cross and not able.cross) or (causal and not able.causal):
                continue
            for precision, limit in TOLERANCE.items():
                error, what = worst(word, cross, causal, precision, options.device)
                count += 1
                if not error <= limit:  # also NaN
                    same = worst(word, cross, causal, precision, "cpu")[0]
                    rows.append((word, role, precision, f"{error:.1e}", f"{limit:.0e}", what, f"{same:.1e}"))
    lengths = ", ".join(map(str, LENGTHS))
    lines = [
        f"{count} pairs of mechanism and role in float32 and bfloat16, lengths {lengths}, with "
        f"right padding: output and gradient of the input. {len(rows)} are further off than "
        + " and ".join(f"{limit:.0e} ({name})" for name, limit in TOLERANCE.items())
        + " of the largest value."
    ]
    head = ("mechanism", "role", "precision", "largest error", "limit", "where", "on a CPU")
    return [*lines, "", *table(head, rows, left=2)] if rows else lines


def worst(word: str, cross: bool, causal: bool, precision: str, device: str) -> tuple[float, str]:
    """The largest error of outputs and gradients over the lengths, and where it is."""
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
            distance = (one - two.double().cpu()).abs().max() / one.abs().max().clamp_min(1e-9)
            if not float(distance) <= found[0]:
                found = (float(distance), f"{name}, length {length}")
    return found


def passes(word: str, cross: bool, causal: bool, length: int, kind: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The output of a layer on two rows, the second one padded, and the gradient of its input."""
    torch.manual_seed(1)
    layer = MultiHead.build(word, 64, 4, 512, cross=cross, causal=causal or None).double().eval()
    x, memory = torch.randn(2, 2, length, 64, dtype=torch.float64)
    layer, x, memory = layer.to(device, kind), x.to(device, kind), memory.to(device, kind)
    valid = (torch.arange(length) < torch.tensor([[length], [max(1, length - 3)]])).to(device)
    x.requires_grad_()
    mask = Mask.cross(valid, length) if cross else Mask.of(valid, length, causal)
    y = layer(x, mask, memory=memory if cross else None).y
    y = y * valid[..., None]
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    return y.detach(), gradient


def run(*words: str | Path) -> str:
    """Standard output of an attnkit command; its error where it fails."""
    done = subprocess.run(attnkit(*words), env=environment(), capture_output=True, text=True, timeout=600)
    return done.stdout if done.returncode == 0 else f"failed: {done.stderr.strip()[-300:]}"


def tasks(options: argparse.Namespace, folder: Path) -> list[str]:
    """A short training of each task on the device, scored."""
    steps, rows = 5 if options.quick else 100, []
    for task, (recipe, *words) in TASKS.items():
        start = time.monotonic()
        out = run(
            "train",
            recipe,
            *words,
            f"train.steps={steps}",
            f"train.valid_every={steps}",
            "--json",
            "--device",
            options.device,
            "--out",
            folder / "runs",
        )
        rows.append((task, f"`{recipe}`", *learned(out), f"{time.monotonic() - start:.0f} s"))
    head = ("task", "recipe", "training loss", "validation loss", "score", "time")
    return [f"{steps} updates each.", "", *table(head, rows, left=2)]


def learned(out: str) -> tuple[str, str, str]:
    """The last training and validation loss and the first score, from events of a training."""
    if out.startswith("failed"):
        return out, "", ""
    told = [json.loads(line) for line in out.splitlines()]
    trained = [event["loss"] for event in told if event["event"] == "progress"]
    valid = [event["loss"] for event in told if event["event"] == "validated"]
    (row,) = told[-1]["rows"][:1]
    name, value = next(iter(row["metrics"].items()))
    return f"{trained[-1]:.3f}", f"{valid[-1]:.3f}", f"{name} {value['score']:.2f}"


def decoding(options: argparse.Namespace, folder: Path) -> list[str]:
    """The same outputs on the device and on the CPU, and the speed."""
    path = folder / "runs" / "quickstart" / "scaled-dot" / "seed-1"
    lines = folder / "lines.txt"
    lines.write_text("\n".join(words(40 if options.quick else 500)) + "\n")
    rows = []
    for how in (("--beam", "1"), ("--beam", "5")):
        found = {}
        for device in dict.fromkeys(("cpu", options.device)):
            start = time.monotonic()
            found[device] = run("generate", path, lines, *how, "--device", device).splitlines()
            seconds = time.monotonic() - start
            rows.append((f"beam {how[1]}", device, f"{len(found[device]) / seconds:.1f}"))
        one, two = found["cpu"], found[options.device]
        same = sum(a == b for a, b in zip(one, two, strict=False))
        rows.append((f"beam {how[1]}", "equal lines", f"{same} of {len(one)}"))
    return table(("search", "", "lines/s"), rows, 2)


def speeds(options: argparse.Namespace, _: Path) -> list[str]:
    """Attention alone, causal, of the mechanisms that the comparisons have."""
    lengths, dtype = ("64,128", "float32") if options.quick else ("512,2048,8192", "bfloat16")
    words = ("bench", "attention", *SPEEDS, "--causal", "--lengths", lengths, "--dtype", dtype)
    return run(*words, "--format", "markdown", "--device", options.device).splitlines()


def words(count: int) -> Iterator[str]:
    """Sources of the embedded translation corpus."""
    from attnkit.data.preparation import prepare
    from attnkit.recipe import load

    recipe = next(iter(load("quickstart").variants.values()))
    for row in list(prepare(recipe).corpus.rows("test"))[:count]:
        yield row.source


if __name__ == "__main__":
    main()
