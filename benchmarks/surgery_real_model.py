"""What a real language model loses when its softmax is replaced: `attnkit convert` on a model.

    python benchmarks/surgery_real_model.py MODEL --data-dir DIR --work WORK

MODEL is a causal Hugging Face model.  Its layers learn from WikiText-2, on which perplexity is
taken; the first row is the control: the same fine-tuning of the model as it is.  Writes
results/surgery-real-model.md and .json; what was made stays in WORK and is not made again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from common import RESULTS, command, keep_others, last_event, load_before, publish, table, versions

from attnkit.show.differences import stars

CONTROL = "none, trained on as it is"
CONVERSIONS = {
    CONTROL: "scaled-dot",
    "local, the last 33 tokens": "{name: local, window: 32}",
    "sparse, rate 8": "{name: sparse, rate: 8}",
    "performer, 128 features": "{name: performer, features: 128}",
    "linear": "linear",
}
"""Title -> what --attention gets."""
STAGES = ("before", "swapped", "transferred", "tuned")


def converted(options: argparse.Namespace, title: str) -> dict[str, Any]:
    """The last event of one conversion: all stages and tests."""
    kept = options.work / f"{CONVERSIONS[title].strip('{}').replace(': ', '-')}.json"
    if kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    transfer = 0 if title == CONTROL else options.transfer
    test = options.work / "test.txt"
    whole = (options.data_dir / "wikitext-2" / "test.txt").read_bytes()
    test.write_text(whole[: options.test_bytes].decode("utf-8", "ignore"), encoding="utf-8")
    words = [
        "convert",
        options.model,
        "--attention",
        CONVERSIONS[title],
        "--out",
        options.work,
        "--text",
        options.data_dir / "wikitext-2" / "train.txt",
        "--test",
        test,
        "--length",
        options.length,
        "--transfer",
        transfer,
        "--tune",
        options.tune,
        "--fresh",
        f"train.batch_tokens={options.batch_tokens}",
        f"train.precision={options.precision}",
    ]
    scored = last_event(*words)
    kept.write_text(json.dumps(scored, indent=1) + "\n", encoding="utf-8")
    return scored


def cells(scored: dict[str, Any]) -> list[str]:
    """Perplexity at each stage, and whether it differs from that of the model as it was."""
    found = {row["variant"]: row["metrics"]["perplexity"]["score"] for row in scored["rows"]}
    tests = {test["variant"]: test["p_corrected"] for test in scored["comparisons"]}
    return [
        f"{found[stage]:.2f}{stars(tests[stage]) if stage in tests else ''}" if stage in found else "-"
        for stage in STAGES
    ]


def main() -> None:
    """Convert, score, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--transfer", type=int, default=200)
    parser.add_argument("--tune", type=int, default=200)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--test-bytes", type=int, default=30_000)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    before = load_before()
    found = {title: converted(options, title) for title in CONVERSIONS}
    windows = found[CONTROL]["rows"][0]["sentences"]
    facts = {
        "command": command(options, model="MODEL", data_dir="DIR", work="WORK"),
        "model": options.model.name,
        "versions": versions("attnkit", "torch", "transformers"),
        "load of the machine": before,
    }
    body = [
        f"Perplexity a token of {windows} windows of {options.length} tokens from the test text of "
        "WikiText-2: of the model as it was, after the attention of all layers is replaced, after "
        f"{options.transfer} updates of attention transfer, and after {options.tune} updates of "
        f"fine-tuning, of {options.batch_tokens:,} tokens each, on its training text. `*`, `**`: "
        "differs from the model as it was with p < 0.05, 0.01 (paired bootstrap over windows, "
        "Holm-corrected).",
        "",
        *table(["attention", *STAGES], [[title, *cells(found[title])] for title in found]),
        "",
        "Fine-tuning alone adapts the model to the text, as the first row shows: that is what "
        "the last column is to be held against. One seed. All rows: `surgery-real-model.json`.",
    ]
    for scored in found.values():
        for row in scored["rows"]:
            row["run"] = Path(row["run"]).name
    keep_others(RESULTS / "surgery-real-model.json", found, list(CONVERSIONS))
    publish("surgery-real-model", "Attention surgery on a language model", facts, body)


if __name__ == "__main__":
    main()
