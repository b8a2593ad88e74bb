"""Time and memory of every mechanism, compared with the fused scaled-dot kernel, on short and long texts.

    python benchmarks/every_mechanism.py

Writes results/every-mechanism.md and .json, from `attnkit bench attention`.
"""

from collections.abc import Sequence
from typing import Any

from common import arguments, facts, json_of, publish, table, write_json

LENGTHS, SHORT, REPEATS = (128, 2048), (28, 64, 128), 3
LAYER = ("--layer", "--batch", "128", "--heads", "4", "--head-width", "32")
"""A layer of width 128 with its projections, for many sentences at a time."""
NOTE = """\
Attention without projections, forward and backward, one row of 8 heads of width 64, float32, one thread, with the
default options. Speed is relative to torch's fused scaled-dot attention in the same rounds: above 1 is faster. Memory
is the peak of what is allocated besides the inputs. Layer: speed of a whole layer with projections, 128 rows of so
many tokens, 4 heads of width 32, relative to the layer with the fused kernel."""

Cells = dict[str, dict[int, dict[str, Any]]]


def measured(lengths: Sequence[int], *more: str) -> Cells:
    """Return mechanism -> length -> its forward and backward pass."""
    words = ["--lengths", ",".join(map(str, lengths)), "--repeats", REPEATS, "--budget", "5", *more]
    cells: Cells = {}
    for point in json_of("bench", "attention", *words, "--threads", "1", threads=1)["points"]:
        cells.setdefault(point["mechanism"], {})[point["length"]] = point["forward+backward"]
    return cells


def cell(point: dict[str, Any] | None, name: str) -> str:
    """Return the speed relative to the fused kernel, or the peak, or the reason why there is none."""
    if point is None:
        return ""
    if point[name] is None:
        return str(point["failure"])
    return f"{point[name]:.2f}" if name == "ratio" else f"{point[name] / 1e6:,.1f} MB"


def main() -> None:
    options = arguments(__doc__)
    about, body, numbers = facts(options) | {"repeats": f"{REPEATS}, all in turn; medians"}, [NOTE], {}
    for sight, words in {"causal": ["--causal"], "full": []}.items():
        cells, layers = measured(LENGTHS, *words), measured(SHORT, *LAYER, *words)
        numbers[sight] = {
            word: {length: {name: point[name] for name in ("ratio", "bytes")} for length, point in row.items()}
            for word, row in cells.items()
        }
        columns = [(cells, "speed", "ratio", LENGTHS), (layers, "layer", "ratio", SHORT)]
        columns.append((cells, "memory", "bytes", LENGTHS))
        heads = [f"{title} {length:,}" for _, title, _, lengths in columns for length in lengths]
        rows = [
            [word, *(cell(found[word].get(at), name) for found, _, name, lengths in columns for at in lengths)]
            for word in cells
        ]
        body += [f"## {sight}", table(["mechanism", *heads], rows)]
    write_json("every-mechanism", numbers)
    publish("every-mechanism", "Every mechanism, short and long", about, body)


if __name__ == "__main__":
    main()
