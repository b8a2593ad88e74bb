"""Studies of attention itself: noise on scores, entropy, and rank of the maps.

    python benchmarks/attention_studies.py RUNS [--multi30k RUNS] [--part noise|entropy|rank]

RUNS is what `attnkit train quickstart` made (runs/quickstart); with --multi30k also finished runs
of translation/multi30k.  Numbers of runs are those of `attnkit probe`, others those of
`made_up.py`; entropy over training needs checkpoints, so that part trains scaled-dot once more,
keeping five.  Writes results/noise.md, entropy.md and rank.md, and the complete rows beside them
as JSON.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from common import RESULTS, command, json_of, last_event, load_before, publish, say, table, versions
from made_up import noise_rows, rank_rows

Row = dict[str, Any]
Runs = dict[str, Path]
"""One run of each variant."""
Result = tuple[list[str], dict[str, list[Row]]]
"""Lines of Markdown, and the rows behind them by name."""

SIGMAS = (0.25, 0.5, 1, 2, 4)
LENGTHS = (16, 64, 256, 512)
KEPT = ("train.average=5", "train.valid_every=130")
"""Keeps the checkpoints of five validations; the end is then their average."""


def probe(study: str, *words: str | Path) -> list[Row]:
    """The rows of one study."""
    say(" ".join(map(str, ("probe", study, *words))))
    rows: list[Row] = json_of("probe", study, *words)["rows"]
    return rows


def variants(runs: Path | None) -> Runs:
    """Finished runs with seed 1; the baseline is the first."""
    paths = sorted(runs.glob("*/seed-1")) if runs else []
    found = {path.parent.name: path for path in paths if (path / "model.safetensors").exists()}
    return dict(sorted(found.items(), key=lambda one: one[0] not in ("scaled-dot", "vanilla")))


def noise(quickstart: Runs, multi30k: Runs) -> Result:
    """The law on made-up scores, and trained models."""
    made_up = noise_rows(SIGMAS)
    head = ["length", "sharpness", "keys", *(f"sigma {sigma:g}" for sigma in SIGMAS)]
    ratios = []
    for first in made_up[:: len(SIGMAS)]:
        here = [row for row in made_up if all(row[k] == first[k] for k in ("length", "sharpness"))]
        cells = [f"{row['measured']:.4f} ({row['ratio']:.2f})" for row in here]
        ratios.append([f"{first['length']:,}", f"{first['sharpness']:g}", f"{first['keys']:,.1f}", *cells])
    models: dict[str, list[Row]] = {}
    for variant, path in quickstart.items():
        if variant != "linear":
            models[variant] = probe("noise", path, "--metrics", "perplexity,bleu")
    by_layer = probe("noise", quickstart["scaled-dot"], "--by", "layer")
    others = {variant: probe("noise", path) for variant, path in multi30k.items()}
    sigmas = [f"sigma {sigma:g}" for sigma in (0, *SIGMAS)]
    body = [
        "## Made-up scores",
        "",
        "Standard deviation of the output of one query under Gaussian noise on its scores, and in "
        "brackets its ratio to the first-order law sqrt((e^(sigma^2) - 1) sum p^2 (v - o)^2). "
        "Scores are drawn from N(0, sharpness squared), values from N(0, 1); keys is 1 / sum p^2.",
        "",
        *table(head, ratios, 0),
        "",
        "## Trained models",
        "",
        "Noise in all layers at once; validation split of the embedded corpus, mean and standard "
        "deviation over three draws of the noise. Perplexity, then BLEU. Linear attention has no "
        "scores.",
        "",
    ]
    for metric, digits in (("perplexity", 3), ("bleu", 2)):
        lines = [[variant, *(_spread(row, metric, digits) for row in rows)] for variant, rows in models.items()]
        body += [*table(["model", *sigmas], lines), ""]
    body += ["Noise in one layer of scaled-dot at a time: perplexity.", ""]
    clean, places = by_layer[0], dict.fromkeys((row["kind"], row["layer"]) for row in by_layer[1:])
    lines = [
        [
            f"{kind}, layer {layer}",
            _spread(clean, "perplexity", 3),
            *(_spread(row, "perplexity", 3) for row in by_layer if (row["kind"], row["layer"]) == (kind, layer)),
        ]
        for kind, layer in places
    ]
    body += table(["noise on", *sigmas], lines)
    if others:
        body += ["", "Multi30k, noise in all layers: perplexity.", ""]
        lines = [[v, *(_spread(row, "perplexity", 2) for row in rows)] for v, rows in others.items()]
        body += table(["model", *sigmas], lines)
    named = {f"multi30k {variant}": rows for variant, rows in others.items()}
    by_part = {"scaled-dot, layer by layer": by_layer}
    return body, {"made-up scores": made_up} | models | by_part | named


def _spread(row: Row, metric: str, digits: int) -> str:
    sd = row[f"{metric}_sd"]
    return f"{row[metric]:.{digits}f}" + (f" \u00b1 {sd:.{digits}f}" if sd else "")


def entropy(quickstart: Runs, multi30k: Runs) -> Result:
    """Over training, and of every variant at its start and end."""
    found = {variant: probe("entropy", path) for variant, path in quickstart.items()}
    others = {
        variant: [row for row in probe("entropy", path) if row["stage"] in ("start", "end")]
        for variant, path in multi30k.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        last_event("train", "quickstart", "--variant", "scaled-dot", "--out", folder, *KEPT)
        over = probe("entropy", Path(folder) / "quickstart" / "scaled-dot" / "seed-1")
    body = [
        "All numbers are means over the heads of a layer, queries and the 400 rows of the "
        "validation split of the embedded corpus. Entropy is a share of the largest, log2 of the "
        "keys that a query sees; the gradient is |dp/ds|_1 / 2 = a (1 - sum p^2), scores times a.",
        "",
        "## Over training",
        "",
        f"scaled-dot, trained with `{' '.join(KEPT)}` so that checkpoints remain (the end is their "
        "average). Entropy, and in brackets the gradient.",
        "",
        *_layers(over, "stage", lambda row: f"{row['share']:.2f} ({row['gradient']:.2f})"),
        "",
        "## Every variant",
        "",
        "Entropy at the start and at the end. A map of linear attention is the effective one.",
        "",
    ]
    body += _start_and_end(found)
    if others:
        body += ["", "Multi30k:", "", *_start_and_end(others)]
    named = {f"multi30k {variant}": rows for variant, rows in others.items()}
    return body, found | {"scaled-dot over training": over} | named


def _start_and_end(found: Mapping[str, Sequence[Row]]) -> list[str]:
    """A table of variants by layers: the entropy at the start and at the end."""
    lines = []
    for variant, rows in found.items():
        cells = []
        for kind, layer in _places(rows):
            ends = [
                mean(row["share"] for row in rows if _is(row, kind, layer) and row["stage"] == stage)
                for stage in ("start", "end")
            ]
            cells.append(" to ".join(f"{number:.2f}" for number in ends))
        lines.append([variant, *cells])
    places = _places(next(iter(found.values())))
    return table(["variant", *(f"{kind} {layer}" for kind, layer in places)], lines)


def _is(row: Row, kind: str, layer: int) -> bool:
    return bool((row["kind"], row["layer"]) == (kind, layer))


def _places(rows: Iterable[Row]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((row["kind"], row["layer"]) for row in rows))


def _layers(rows: Sequence[Row], key: str, text: Callable[[Row], str]) -> list[str]:
    """A table of layers by the values of one field, means over heads."""
    columns = list(dict.fromkeys(row[key] for row in rows))
    lines = []
    for kind, layer in _places(rows):
        cells = []
        for column in columns:
            heads = [row for row in rows if _is(row, kind, layer) and row[key] == column]
            means = {n: mean(head[n] for head in heads) for n in ("share", "gradient")}
            cells.append(text(means))
        lines.append([f"{kind}, layer {layer}", *cells])
    return table(["layer", *columns], lines)


def rank(quickstart: Runs, multi30k: Runs) -> Result:
    """Trained runs, and every mechanism before training."""
    trained = probe("rank", *quickstart.values())
    others = probe("rank", *multi30k.values()) if multi30k else []
    known = json_of("mechanisms")["rows"]
    words = [row["mechanism"] for row in known if row["mechanism"] not in ("mixture", "interleaved")]
    both_sides = [row["mechanism"] for row in known if row["encoder"] == "yes"]
    mixed = "mixture:parts=[scaled-dot,synthesizer-random]"
    new = rank_rows([*(word for word in words if word in both_sides), mixed], LENGTHS)
    causal_words = [row["mechanism"] for row in known if row["decoder"] == "yes"]
    causal = rank_rows([word for word in words if word in causal_words], LENGTHS, causal=True)
    body = [
        "Effective rank (exp of the entropy of the normalised singular values, Roy and Vetterli "
        "2007), and in brackets the numerical rank (singular values above 0.001 of the largest).",
        "",
        "## Trained on the embedded corpus",
        "",
        "Means over the heads of a layer and the 400 rows of the validation split, which have about 14 tokens.",
        "",
    ]
    body += _by_layer(trained)
    if others:
        body += ["", "Multi30k, sentences of about 16 tokens:", "", *_by_layer(others)]
    for title, rows in (("every key visible", new), ("causal", causal)):
        body += [
            "",
            f"## Before training, {title}",
            "",
            "New layers with four heads of width 64 that read tokens drawn from N(0, 1); means "
            "over heads and three draws.",
            "",
        ]
        lines = [
            [word, *(_ranks(row) for row in rows if row["mechanism"] == word)]
            for word in dict.fromkeys(row["mechanism"] for row in rows)
        ]
        body += table(["mechanism", *(f"length {n}" for n in LENGTHS)], lines)
    named = {"trained": trained, "before training": new, "before training, causal": causal}
    return body, named | ({"multi30k": others} if others else {})


def _by_layer(rows: Sequence[Row]) -> list[str]:
    """A table of runs by layers."""
    places = list(dict.fromkeys((row["attention"], row["layer"]) for row in rows))
    lines = [
        [run, *(_ranks(row) for row in rows if row["run"] == run)] for run in dict.fromkeys(row["run"] for row in rows)
    ]
    return table(["variant", *(f"{kind} {layer}" for kind, layer in places)], lines)


def _ranks(row: Row) -> str:
    return f"{row['effective_rank']:.1f} ({row['numerical_rank']:.0f})"


def json_text(rows: Mapping[str, Sequence[Row]]) -> str:
    """One object with a list for each name, a row a line; numbers with four digits."""
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
    """Measure the parts and write their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--multi30k", type=Path)
    parser.add_argument("--part", choices=PARTS)
    options = parser.parse_args()
    for name in [options.part] if options.part else PARTS:
        title, measure = PARTS[name]
        before = load_before()
        body, rows = measure(variants(options.runs), variants(options.multi30k))
        facts = {
            "command": command(options, runs="runs/quickstart", multi30k="runs/translation/multi30k"),
            "versions": versions("attnkit", "torch"),
            "load of the machine": before,
        }
        publish(name, title, facts, [*body, "", f"All rows: `{name}.json`."])
        (RESULTS / f"{name}.json").write_text(json_text(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
