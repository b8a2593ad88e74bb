"""Noise on attention scores, entropy of attention, and rank of its maps, in trained models and simulations.

    python benchmarks/attention_studies.py RUNS [--multi30k RUNS] [--part noise|entropy|rank]

RUNS is the result of `attnkit train quickstart` (runs/quickstart); with --multi30k, finished runs of
translation/multi30k are added. `attnkit probe` measures the runs, `made_up.py` the simulations. Entropy over training
needs checkpoints, so that part trains scaled-dot once more and keeps five. Writes results/noise.md, entropy.md and
rank.md, and all rows beside them as JSON.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from common import RESULTS, arguments, facts, json_of, last_event, publish, table
from made_up import noise_rows, rank_rows

Row = dict[str, Any]
Runs = dict[str, Path]
"""One run of each variant."""
Result = tuple[list[str], dict[str, list[Row]]]
"""Paragraphs and tables, and named lists of rows."""

SIGMAS = (0.25, 0.5, 1, 2, 4)
LENGTHS = (16, 64, 256, 512)
KEEP_CHECKPOINTS = ("train.average=5", "train.valid_every=130")


def probe(study: str, *words: str | Path) -> list[Row]:
    """Return the rows of one study."""
    return list(json_of("probe", study, *words)["rows"])


def variants(runs: Path | None) -> Runs:
    """Return the finished runs with seed 1, the baseline first."""
    paths = sorted(runs.glob("*/seed-1")) if runs else []
    found = {path.parent.name: path for path in paths if (path / "model.safetensors").exists()}
    return dict(sorted(found.items(), key=lambda item: item[0] not in ("scaled-dot", "vanilla")))


def column(rows: Iterable[Row], *keys: str) -> list[Any]:
    """Return the distinct values of a column, or of several as tuples, in order."""
    return list(dict.fromkeys(row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys) for row in rows))


def select(rows: Iterable[Row], **values: Any) -> list[Row]:
    """Return the rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def noise(quickstart: Runs, multi30k: Runs) -> Result:
    """Compare simulated scores with the first-order law, and measure trained models."""
    simulated = noise_rows(SIGMAS)
    ratios = []
    for length, sharpness in column(simulated, "length", "sharpness"):
        rows = select(simulated, length=length, sharpness=sharpness)
        cells = [f"{row['measured']:.4f} ({row['ratio']:.2f})" for row in rows]
        ratios.append([f"{length:,}", f"{sharpness:g}", f"{rows[0]['keys']:,.1f}", *cells])
    names = [name for name in quickstart if name != "linear"]
    models = {name: probe("noise", quickstart[name], "--metrics", "perplexity,bleu") for name in names}
    by_layer = probe("noise", quickstart["scaled-dot"], "--by", "layer")
    others = {variant: probe("noise", path) for variant, path in multi30k.items()}
    sigmas = [f"sigma {sigma:g}" for sigma in (0, *SIGMAS)]
    body = [
        "## Simulated scores",
        "Standard deviation of the output of one query under Gaussian noise on its scores, and in parentheses its "
        "ratio to the first-order law sqrt((e^(sigma^2) - 1) sum p^2 (v - o)^2). Scores are drawn from N(0, sharpness "
        "squared), values from N(0, 1); keys is 1 / sum p^2.",
        table(["length", "sharpness", "keys", *sigmas[1:]], ratios, 0),
        "## Trained models",
        "Noise in all layers at once; validation split of the embedded corpus, mean and standard deviation over three "
        "draws of the noise. Perplexity, then BLEU. Linear attention has no scores.",
    ]
    for metric, digits in (("perplexity", 3), ("bleu", 2)):
        lines = [[name, *(_spread(row, metric, digits) for row in rows)] for name, rows in models.items()]
        body += [table(["model", *sigmas], lines)]
    lines = [
        [f"{kind}, layer {layer}"]
        + [_spread(row, "perplexity", 3) for row in (by_layer[0], *select(by_layer[1:], kind=kind, layer=layer))]
        for kind, layer in column(by_layer[1:], "kind", "layer")
    ]
    body += ["Noise in one layer of scaled-dot at a time: perplexity.", table(["noise on", *sigmas], lines)]
    if others:
        lines = [[name, *(_spread(row, "perplexity", 2) for row in rows)] for name, rows in others.items()]
        body += ["Multi30k, noise in all layers: perplexity.", table(["model", *sigmas], lines)]
    named = {f"multi30k {variant}": rows for variant, rows in others.items()}
    return body, {"simulated scores": simulated} | models | {"scaled-dot, layer by layer": by_layer} | named


def _spread(row: Row, metric: str, digits: int) -> str:
    sd = row[f"{metric}_sd"]
    return f"{row[metric]:.{digits}f}" + (f" \u00b1 {sd:.{digits}f}" if sd else "")


def entropy(quickstart: Runs, multi30k: Runs) -> Result:
    """Measure entropy over training, and of every variant at its start and end."""
    found = {variant: probe("entropy", path) for variant, path in quickstart.items()}
    others = {f"multi30k {variant}": probe("entropy", path) for variant, path in multi30k.items()}
    others = {name: [row for row in rows if row["stage"] in ("start", "end")] for name, rows in others.items()}
    with tempfile.TemporaryDirectory() as folder:
        last_event("train", "quickstart", "--variant", "scaled-dot", "--out", folder, *KEEP_CHECKPOINTS)
        over = probe("entropy", Path(folder) / "quickstart" / "scaled-dot" / "seed-1")
    stages, lines = column(over, "stage"), []
    for kind, layer in column(over, "kind", "layer"):
        cells = []
        for stage in stages:
            heads = select(over, kind=kind, layer=layer, stage=stage)
            share, gradient = (mean(head[name] for head in heads) for name in ("share", "gradient"))
            cells.append(f"{share:.2f} ({gradient:.2f})")
        lines.append([f"{kind}, layer {layer}", *cells])
    body = [
        "All numbers are means over the heads of a layer, queries and the 400 rows of the validation split of the "
        "embedded corpus. Entropy is given as a share of the maximum, log2 of the number of keys that a query sees; "
        "the gradient is |dp/ds|_1 / 2 = a (1 - sum p^2), for scores times a.",
        "## Over training",
        f"scaled-dot, trained with `{' '.join(KEEP_CHECKPOINTS)}` so that checkpoints remain (the end is their "
        "average). Entropy, and in parentheses the gradient.",
        table(["layer", *stages], lines),
        "## Every variant",
        "Entropy at the start and at the end. For linear attention, the map is the effective one.",
        _start_and_end(found),
    ]
    if others:
        shown = {name.removeprefix("multi30k "): rows for name, rows in others.items()}
        body += ["Multi30k:", _start_and_end(shown)]
    return body, found | {"scaled-dot over training": over} | others


def _start_and_end(found: Mapping[str, Sequence[Row]]) -> str:
    """Return a table of variants by layers: entropy at the start and at the end."""
    lines = []
    for variant, rows in found.items():
        cells = []
        for kind, layer in column(rows, "kind", "layer"):
            ends = [
                mean(row["share"] for row in select(rows, kind=kind, layer=layer, stage=stage))
                for stage in ("start", "end")
            ]
            cells.append(f"{ends[0]:.2f} to {ends[1]:.2f}")
        lines.append([variant, *cells])
    places = column(next(iter(found.values())), "kind", "layer")
    return table(["variant", *(f"{kind} {layer}" for kind, layer in places)], lines)


def rank(quickstart: Runs, multi30k: Runs) -> Result:
    """Measure the rank of maps in trained runs, and of every mechanism before training."""
    trained = probe("rank", *quickstart.values())
    others = probe("rank", *multi30k.values()) if multi30k else []
    known = [row for row in json_of("mechanisms")["rows"] if row["mechanism"] not in ("mixture", "interleaved")]
    new, causal = ([row["mechanism"] for row in known if row[side] == "yes"] for side in ("encoder", "decoder"))
    untrained = {
        "every key visible": rank_rows([*new, "mixture:parts=[scaled-dot,synthesizer-random]"], LENGTHS),
        "causal": rank_rows(causal, LENGTHS, causal=True),
    }
    body = [
        "Effective rank (exp of the entropy of the normalized singular values, Roy and Vetterli 2007), and in "
        "parentheses the numerical rank (number of singular values above 0.001 of the largest).",
        "## Trained on the embedded corpus",
        "Means over the heads of a layer and the 400 rows of the validation split, which have about 14 tokens.",
        _by_layer(trained),
    ]
    if others:
        body += ["Multi30k, sentences of about 16 tokens:", _by_layer(others)]
    for title, rows in untrained.items():
        body += [
            f"## Before training, {title}",
            "New layers with four heads of width 64 on tokens drawn from N(0, 1); means over heads and three draws.",
        ]
        lines = [[word, *map(_ranks, select(rows, mechanism=word))] for word in column(rows, "mechanism")]
        body.append(table(["mechanism", *(f"length {n}" for n in LENGTHS)], lines))
    named = {"trained": trained, "before training": untrained["every key visible"]}
    named["before training, causal"] = untrained["causal"]
    return body, named | ({"multi30k": others} if others else {})


def _by_layer(rows: Sequence[Row]) -> str:
    """Return a table of runs by layers."""
    lines = [[run, *map(_ranks, select(rows, run=run))] for run in column(rows, "run")]
    return table(["variant", *(f"{kind} {layer}" for kind, layer in column(rows, "attention", "layer"))], lines)


def _ranks(row: Row) -> str:
    return f"{row['effective_rank']:.1f} ({row['numerical_rank']:.0f})"


def json_text(rows: Mapping[str, Sequence[Row]]) -> str:
    """Return an object with a list for each name, a row a line; numbers with four digits."""
    parts = []
    for name, several in rows.items():
        lines = [{k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()} for row in several]
        inside = ",\n  ".join(map(json.dumps, lines))
        parts.append(f" {json.dumps(name)}: [\n  {inside}\n ]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


PARTS: dict[str, tuple[str, Callable[[Runs, Runs], Result]]] = {
    "noise": ("Noise on attention scores", noise),
    "entropy": ("Entropy of attention", entropy),
    "rank": ("Rank of attention maps", rank),
}


def main() -> None:
    options = arguments(__doc__, "runs", multi30k=Path, part=tuple(PARTS))
    for name in [options.part] if options.part else PARTS:
        title, measure = PARTS[name]
        about = facts(options)
        body, rows = measure(variants(options.runs), variants(options.multi30k))
        publish(name, title, about, [*body, f"All rows: `{name}.json`."])
        (RESULTS / f"{name}.json").write_text(json_text(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
