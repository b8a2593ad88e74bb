"""Write `attnkit/_demo`: the quickstart's best row, trained, with weights in half precision.

    attnkit train quickstart --variant random+vanilla --out runs
    python benchmarks/demo_model.py runs/quickstart/random+vanilla/seed-1

It prints the size and the SHA-256 of the weights, which attnkit/_demo/manifest.json records.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch

from attnkit.runs import Run, layout
from attnkit.runs.demo import SHIPPED
from attnkit.storage import files, tensors

LARGEST = 2_000_000
"""Bytes of all files together, at most."""
KEPT = (
    "attnkit",
    "python",
    "torch",
    "recipe",
    "variant",
    "seed",
    "hashes",
    "device",
    "threads",
    "precision",
    "baseline",
    "variants",
    "parameters",
    "parallel",
    "world_size",
)
"""Entries of the manifest that say how the model was made."""


def write(source: Run, folder: Path) -> str:
    """Fill the folder with what decoding needs; the SHA-256 of the weights."""
    source.require_finished()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in (layout.RECIPE, layout.TOKENIZERS[0]):
        shutil.copyfile(source.path / name, folder / name)
    half = {name: weight.half() for name, weight in tensors.unique(source.weights()).items()}
    _, digest = tensors.write(folder / layout.MODEL, half, {"step": str(source.outcome.step)})
    named = {path.name: files.sha256_file(path) for path in sorted(folder.iterdir())}
    known = source.read_json(layout.MANIFEST)
    entries = {key: known[key] for key in KEPT if key in known} | {"files": named, "finished": known["finished"]}
    entries["sha256"] = files.sha256_json(entries)
    (folder / layout.MANIFEST).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    return digest


def main() -> None:
    """Write it and say what it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    digest = write(Run.open(parser.parse_args().run), SHIPPED)
    size = sum(path.stat().st_size for path in SHIPPED.iterdir())
    if size > LARGEST:
        raise SystemExit(f"{SHIPPED}: {size:,} bytes are more than {LARGEST:,}")
    print(f"{SHIPPED}: {size:,} bytes, {layout.MODEL} {digest}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
