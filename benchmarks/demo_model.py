"""Write `attnkit/_demo`: the quickstart's best row, trained, with weights in half precision.

    attnkit train quickstart --variant random+vanilla --out runs
    python benchmarks/demo_model.py runs/quickstart/random+vanilla/seed-1

Prints the size and the SHA-256 of the weights, which attnkit/_demo/manifest.json records.
"""

import json
import shutil
import sys

import torch

from attnkit.runs import Run, layout
from attnkit.runs.demo import SHIPPED
from attnkit.storage import files, tensors

MAX_BYTES = 2_000_000
KEPT = (
    *("attnkit", "python", "torch", "recipe", "variant", "seed", "hashes", "device", "threads", "precision"),
    *("baseline", "variants", "parameters", "parallel", "world_size"),
)
"""Entries of the manifest that describe how the model was made."""


def main() -> None:
    torch.set_num_threads(1)
    source = Run.open(sys.argv[1])
    source.require_finished()
    shutil.rmtree(SHIPPED, ignore_errors=True)
    SHIPPED.mkdir()
    for name in (layout.RECIPE, layout.TOKENIZERS[0]):
        shutil.copyfile(source.path / name, SHIPPED / name)
    half = {name: weight.half() for name, weight in tensors.unique(source.weights()).items()}
    _, digest = tensors.write(SHIPPED / layout.MODEL, half, {"step": str(source.outcome.step)})
    hashes = {path.name: files.sha256_file(path) for path in sorted(SHIPPED.iterdir())}
    known = source.read_json(layout.MANIFEST)
    entries = {key: known[key] for key in KEPT if key in known} | {"files": hashes, "finished": known["finished"]}
    entries["sha256"] = files.sha256_json(entries)
    (SHIPPED / layout.MANIFEST).write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in SHIPPED.iterdir())
    if size > MAX_BYTES:
        raise SystemExit(f"{SHIPPED}: {size:,} bytes are more than {MAX_BYTES:,}")
    print(f"{SHIPPED}: {size:,} bytes, {layout.MODEL} {digest}")


if __name__ == "__main__":
    main()
