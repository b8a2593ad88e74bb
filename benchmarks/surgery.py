"""BLEU of a trained model whose attention is replaced, after each stage of `attnkit convert`.

    attnkit train translation/multi30k --variant vanilla --out RUNS --data-dir DIR
    python benchmarks/surgery.py RUNS/translation/multi30k/vanilla/seed-1 --data-dir DIR --work WORK

Converts the run to each mechanism below. The first row is the control: the same fine-tuning without a conversion.
Scores are BLEU of greedy search on the test set. Writes results/surgery.md and results/surgery.json; converted runs
stay in WORK and are not made again.
"""

import argparse
from pathlib import Path
from typing import Any

from common import arguments, facts, last_event, publish, table, write_json

from attnkit.runs import Run
from attnkit.show.differences import stars

CONTROL = "scaled-dot"
CONVERSIONS = {
    "none, trained on as it is": CONTROL,
    "linear": "linear",
    "performer": "performer",
    "nystrom with 8 landmarks in the encoder": "{encoder: {name: nystrom, landmarks: 8}}",
    "synthesizer-random, except in cross attention": "{encoder: synthesizer-random, decoder: synthesizer-random}",
    "fixed-pattern, except in cross attention": "{encoder: fixed-pattern, decoder: fixed-pattern}",
}
"""Title -> value of --attention."""
STAGES = ("before", "swapped", "transferred", "tuned")


def convert(options: argparse.Namespace, attention: str) -> list[dict[str, Any]]:
    """Return the stages of one conversion: BLEU, the difference from the run before, and its p-value."""
    transfer = 0 if attention == CONTROL else options.transfer
    scored = last_event(
        *("convert", options.run, "--attention", attention, "--out", options.work),
        *("--transfer", transfer, "--tune", options.tune),
        *("eval.splits=[test]", "eval.metrics=[bleu]", "search.method=greedy"),
    )
    tests = {test["variant"]: test for test in scored["comparisons"]}
    rows = []
    for row in scored["rows"]:
        before = row["variant"] not in tests
        test, converted = tests.get(row["variant"], {}), Run.open(row["run"]).manifest.converted
        rows.append(
            {
                "stage": "before" if before else row["variant"].rpartition("-")[2],
                "bleu": row["metrics"]["bleu"]["score"],
                "signature": row["metrics"]["bleu"]["signature"],
                "difference": test.get("difference"),
                "p_corrected": test.get("p_corrected"),
                "parameters": row["parameters"],
                "mean_squared_error": None if before or converted is None else converted.mean_squared_error,
            }
        )
    return rows


def cells(rows: list[dict[str, Any]]) -> list[str]:
    """Return BLEU at each stage with marks of differences, the errors of attention transfer, and parameters."""
    scores = {row["stage"]: f"{row['bleu']:.2f}{stars(row['p_corrected'])}" for row in rows}
    errors = [row["mean_squared_error"] for row in rows if row["mean_squared_error"]]
    error = " to ".join(f"{errors[0][end]:.2f}" for end in ("first", "last")) if errors else "-"
    return [*(scores.get(stage, "-") for stage in STAGES), error, f"{rows[-1]['parameters']:,}"]


def main() -> None:
    options = arguments(__doc__, "run", work=Path, transfer=200, tune=500)
    about, run = facts(options, "sacrebleu"), Run.open(options.run)
    about["run"] = f"{run.name}, variant {run.variant}, seed {run.seed}, {run.outcome.last:,} updates"
    found = {title: convert(options, words) for title, words in CONVERSIONS.items()}
    header = " | ".join(["attention", *STAGES, "error", "parameters"])
    body = [
        "BLEU of greedy search on test: of the run as it was trained, after its attention is replaced, after "
        f"{options.transfer} updates of attention transfer, and after {options.tune} updates of fine-tuning. `*`, "
        "`**`: differs from the run before with p < 0.05, 0.01 (paired bootstrap over sentences, Holm-corrected). "
        "Error: mean squared error between the outputs of new and old layers, at the first update and over the last "
        "ten.",
        table(header, [[title, *cells(rows)] for title, rows in found.items()]),
        f"BLEU: {next(iter(found.values()))[0]['signature']}. All rows: `surgery.json`.",
    ]
    publish("surgery", "Attention surgery", about, body)
    write_json("surgery", found)


if __name__ == "__main__":
    main()
