"""Perplexity of a language model whose softmax attention is replaced by `attnkit convert`.

    python benchmarks/surgery_real_model.py MODEL --data-dir DIR --work WORK [--transfer 200] [--tune 200]

MODEL is a causal Hugging Face model. Its layers are trained on WikiText-2, on which perplexity is measured; the first
row is the control: the same fine-tuning without a conversion. Writes results/surgery-real-model.md and .json; finished
conversions stay in WORK and are not made again.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from common import arguments, facts, last_event, publish, table, write_json

from attnkit.show.differences import stars

CONTROL = "none, trained on as it is"
CONVERSIONS = {
    CONTROL: "scaled-dot",
    "local, the last 33 tokens": "{name: local, window: 32}",
    "sparse, rate 8": "{name: sparse, rate: 8}",
    "performer, 128 features": "{name: performer, features: 128}",
    "linear": "linear",
}
"""Title -> value of --attention."""
STAGES = ("before", "swapped", "transferred", "tuned")
LENGTH, BATCH_TOKENS, TEST_BYTES = 256, 1024, 30_000


def convert(options: argparse.Namespace, title: str) -> dict[str, Any]:
    """Return the last event of one conversion: all stages and tests."""
    kept = options.work / f"{CONVERSIONS[title].strip('{}').replace(': ', '-')}.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    corpus, test = Path(os.environ["ATTNKIT_DATA"]) / "wikitext-2", options.work / "test.txt"
    text = (corpus / "test.txt").read_bytes()[:TEST_BYTES].decode("utf-8", "ignore")
    test.write_text(text, encoding="utf-8")
    scored = last_event(
        *("convert", options.model, "--attention", CONVERSIONS[title], "--out", options.work),
        *("--text", corpus / "train.txt", "--test", test, "--length", LENGTH),
        *("--transfer", 0 if title == CONTROL else options.transfer, "--tune", options.tune),
        *("--fresh", f"train.batch_tokens={BATCH_TOKENS}", "train.precision=bf16"),
    )
    kept.write_text(json.dumps(scored, indent=1) + "\n", encoding="utf-8")
    return scored


def cells(scored: dict[str, Any]) -> list[str]:
    """Return the perplexity at each stage, with a mark if it differs from that of the original model."""
    found = {row["variant"]: row["metrics"]["perplexity"]["score"] for row in scored["rows"]}
    tests = {test["variant"]: test["p_corrected"] for test in scored["comparisons"]}
    return [f"{found[stage]:.2f}{stars(tests.get(stage))}" if stage in found else "-" for stage in STAGES]


def main() -> None:
    options = arguments(__doc__, "model", work=Path, transfer=200, tune=200)
    options.work.mkdir(parents=True, exist_ok=True)
    about = facts(options, "transformers") | {"model": options.model.name}
    found = {title: convert(options, title) for title in CONVERSIONS}
    windows = found[CONTROL]["rows"][0]["sentences"]
    body = [
        f"Perplexity per token of {windows} windows of {LENGTH} tokens from the test text of WikiText-2: of the "
        f"original model, after the attention of all layers is replaced, after {options.transfer} updates of "
        f"attention transfer, and after {options.tune} updates of fine-tuning, of {BATCH_TOKENS:,} tokens each, on "
        "its training text. `*`, `**`: differs from the original model with p < 0.05, 0.01 (paired bootstrap over "
        "windows, Holm-corrected).",
        table(["attention", *STAGES], [[title, *cells(found[title])] for title in found]),
        "Fine-tuning alone adapts the model to the text, as the first row shows: compare the last column with it. One "
        "seed. All rows: `surgery-real-model.json`.",
    ]
    for scored in found.values():
        for row in scored["rows"]:
            row["run"] = Path(row["run"]).name
    write_json("surgery-real-model", found, list(CONVERSIONS))
    publish("surgery-real-model", "Attention surgery on a language model", about, body)


if __name__ == "__main__":
    main()
