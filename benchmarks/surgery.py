"""What a trained model loses when its attention is replaced: after each stage of `attnkit convert`.

    attnkit train translation/multi30k --variant vanilla --out RUNS --data-dir DIR
    python benchmarks/surgery.py RUNS/translation/multi30k/vanilla/seed-1 --data-dir DIR --work WORK

Converts the run to each mechanism below, with the first row as the control: the same fine-tuning
of the model as it is.  Scores are BLEU of greedy search on the split test.  Writes
results/surgery.md and results/surgery.json; converted runs stay in WORK and are not made again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from common import RESULTS, command, last_event, load_before, publish, table, versions

from attnkit.runs import Run
from attnkit.show.differences import stars

CONTROL = "scaled-dot"
SELF = "{{encoder: {0}, decoder: {0}}}"
CONVERSIONS = {
    "none, trained on as it is": CONTROL,
    "linear": "linear",
    "performer": "performer",
    "nystrom with 8 landmarks in the encoder": "{encoder: {name: nystrom, landmarks: 8}}",
    "synthesizer-random, except in cross attention": SELF.format("synthesizer-random"),
    "fixed-pattern, except in cross attention": SELF.format("fixed-pattern"),
}
"""Title -> what --attention gets."""
STAGES = ("before", "swapped", "transferred", "tuned")


def converted(options: argparse.Namespace, attention: str) -> list[dict[str, Any]]:
    """The stages of one conversion: BLEU, the difference to the run before, and its p-value."""
    transfer = 0 if attention == CONTROL else options.transfer
    scored = last_event(
        "convert",
        options.run,
        "--attention",
        attention,
        "--out",
        options.work,
        "--transfer",
        transfer,
        "--tune",
        options.tune,
        "eval.splits=[test]",
        "eval.metrics=[bleu]",
        "search.method=greedy",
        *(["--data-dir", options.data_dir] if options.data_dir else []),
    )
    tests = {test["variant"]: test for test in scored["comparisons"]}
    rows = []
    for row in scored["rows"]:
        before = row["variant"] not in tests
        test = tests.get(row["variant"], {})
        made = Run.open(row["run"]).manifest.converted
        rows.append(
            {
                "stage": "before" if before else row["variant"].rpartition("-")[2],
                "bleu": row["metrics"]["bleu"]["score"],
                "signature": row["metrics"]["bleu"]["signature"],
                "difference": test.get("difference"),
                "p_corrected": test.get("p_corrected"),
                "parameters": row["parameters"],
                "mean_squared_error": None if before or made is None else made.mean_squared_error,
            }
        )
    return rows


def cell(rows: list[dict[str, Any]], stage: str) -> str:
    """BLEU at one stage, and whether it differs from that before."""
    row = next((row for row in rows if row["stage"] == stage), None)
    if row is None:
        return "-"
    p = row["p_corrected"]
    return f"{row['bleu']:.2f}" + ("" if p is None else stars(p))


def error_cell(rows: list[dict[str, Any]]) -> str:
    """The error that attention transfer began and ended with."""
    errors = [row["mean_squared_error"] for row in rows if row["mean_squared_error"]]
    return " to ".join(f"{errors[0][end]:.2f}" for end in ("first", "last")) if errors else "-"


def main() -> None:
    """Convert, score, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--transfer", type=int, default=200)
    parser.add_argument("--tune", type=int, default=500)
    options = parser.parse_args()
    before = load_before()
    found = {title: converted(options, words) for title, words in CONVERSIONS.items()}
    run = Run.open(options.run)
    lines = [
        [title, *(cell(rows, stage) for stage in STAGES), error_cell(rows), f"{rows[-1]['parameters']:,}"]
        for title, rows in found.items()
    ]
    facts = {
        "command": command(options, run="RUN", data_dir="DIR", work="WORK"),
        "run": f"{run.name}, variant {run.variant}, seed {run.seed}, {run.outcome.last:,} updates",
        "versions": versions("attnkit", "torch", "sacrebleu"),
        "load of the machine": before,
    }
    body = [
        "BLEU of greedy search on test: of the run as it was trained, after its attention is "
        f"replaced, after {options.transfer} updates of attention transfer, and after "
        f"{options.tune} updates of fine-tuning. `*`, `**`: differs from the run before with "
        "p < 0.05, 0.01 (paired bootstrap over sentences, Holm-corrected). Error: mean squared "
        "error between the outputs of new and old layers, at the first update and over the last "
        "ten.",
        "",
        *table(["attention", "before", "swapped", "transferred", "tuned", "error", "parameters"], lines),
        "",
        f"BLEU: {next(iter(found.values()))[0]['signature']}. All rows: `surgery.json`.",
    ]
    publish("surgery", "Attention surgery", facts, body)
    text = json.dumps(found, indent=1)
    (RESULTS / "surgery.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
