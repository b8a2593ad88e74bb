"""Language models of naive Bayes, n-grams and a Transformer, from the runs of their recipes.

    attnkit train language-modeling/naive-bayes-topics --out RUNS
    attnkit train language-modeling/naive-bayes-chains --out RUNS
    attnkit train language-modeling/naive-bayes --out RUNS --data-dir DIR
    python benchmarks/naive_bayes.py RUNS --data-dir DIR

Writes results/naive-bayes.md and results/naive-bayes.json; each recipe that has scored runs in RUNS
gets its section anew, with the perplexity of the source itself where that is known, the entropy of
what is predicted by the number of tokens before, and the perplexity in longer blocks than trained.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    RESULTS,
    command,
    json_of,
    keep_others,
    load_before,
    publish_part,
    say,
    table,
    versions,
)

from attnkit.data.batch import collate
from attnkit.data.corpus import Corpus
from attnkit.data.synthetic.known_source import END, KnownSource, known_source
from attnkit.runs import Run
from attnkit.scoring.teacher_forced import encode_rows, teacher_forced

TITLE = "Naive Bayes as a language model"
RECIPES = tuple(f"language-modeling/naive-bayes{end}" for end in ("-topics", "-chains", ""))
LONG = 512
"""Tokens of the longer blocks."""
BLOCKS = 128
"""Blocks of which entropies are the mean."""


def evaluated(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What `attnkit eval --format json` prints of the runs of a recipe."""
    data = ["--data-dir", options.data_dir.resolve()] if options.data_dir else []
    found: dict[str, Any] = json_of("eval", options.runs / name, *data)
    return found


@torch.inference_mode()
def entropies(run: Run, rows: list[Any], places: list[int]) -> list[float]:
    """The mean entropy, in nats, of what is predicted after so many tokens of a block."""
    model, length = run.model(), run.recipe.data.max_length
    encoded = encode_rows(rows, run.tokenizer(), length, stream=True)
    whole = np.flatnonzero(encoded.target.lengths == length - 1)[:BLOCKS]
    logs = model(None, collate(encoded, whole).input).log_softmax(-1)
    found = -(logs.exp() * logs).sum(-1).mean(0)
    return [float(found[place]) for place in places]


def of_source(source: KnownSource, rows: list[Any], block: int) -> float:
    """The perplexity of the source itself on this text, the lowest that can be expected."""
    tokens = [word for row in rows for word in (*row.target.split(), END)]
    starts = range(0, len(tokens) - block + 1, block)
    nll = [
        -math.log(source.next_tokens(tokens[start:place], block)[tokens[place]])
        for start in starts
        for place in range(start, start + block)
    ]
    return math.exp(sum(nll) / len(nll))


def longer(run: Run, rows: list[Any]) -> float:
    """Perplexity in blocks of `LONG` tokens."""
    encoded = encode_rows(rows, run.tokenizer(), LONG, stream=True)
    nll, _, tokens, *_ = teacher_forced(run.model(), encoded).sum(0)
    return math.exp(min(nll / tokens, 700))


def number(value: float) -> str:
    return f"{value:.2f}" if value < 10_000 else f"{value:.1e}"


def section(name: str, found: dict[str, Any], options: argparse.Namespace) -> Iterator[str]:
    """The table of one recipe; what it shows beside the scores is added to `found`."""
    rows = [row for row in found["rows"] if row["split"] == "test"]
    first = Run.open(rows[0]["run"])
    data = first.recipe.data
    corpus = Corpus.open(data, "language-modeling", data_dir=options.data_dir)
    text = list(corpus.rows("test"))
    tests = {one["variant"]: one for one in found["comparisons"] if one["metric"] == "perplexity"}
    places = [place for place in (0, 1, 7, 31, 127) if place < data.max_length]
    more: dict[str, dict[str, Any]] = {}
    for row in rows:
        say(f"{name} {row['variant']}")
        run = Run.open(row["run"])
        more[row["variant"]] = {
            f"perplexity_in_blocks_of_{LONG}": longer(run, text),
            "entropy_after": dict(zip(places, entropies(run, text, places), strict=True)),
        }
    found["more"] = more
    head = ["model", "perplexity", "difference to bigram", "numbers",
            f"perplexity in blocks of {LONG}",
            *(f"entropy after {place}" for place in places)]  # fmt: skip
    yield from [f"Blocks of {data.max_length} tokens.", ""]
    lines = []
    if (source := known_source(str(data.corpus))) is not None:
        best, far = (of_source(source, text, block) for block in (data.max_length, LONG))
        expected = {block: math.exp(source.nats(block)) for block in (data.max_length, LONG)}
        found["source"] = {"on_this_text": {data.max_length: best, LONG: far}, "expected": expected}
        lines.append(["the source itself", number(best), "", "", number(far), *[""] * len(places)])
    for row in rows:
        variant = row["variant"]
        score, test = row["metrics"]["perplexity"]["score"], tests.get(variant)
        change = ""
        if test is not None:
            p = test.get("p_corrected", test.get("p"))
            mark = "" if p is None or p >= 0.05 else r"\*\*" if p < 0.01 else r"\*"
            change = (
                f"{'-' if test['difference'] < 0 else '+'}{number(abs(test['difference']))}{mark}"
            )
        facts = more[variant]
        lines.append([
            variant, number(score), change, f"{row['parameters']:,}",
            number(facts[f"perplexity_in_blocks_of_{LONG}"]),
            *(f"{value:.2f}" for value in facts["entropy_after"].values()),
        ])  # fmt: skip
    yield from table(head, lines)


def main() -> None:
    """Score what is new, measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, metavar="RUNS")
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    options = parser.parse_args()
    objects = {}
    for name in RECIPES:
        if any((options.runs / name).glob("*/seed-*/scores.json")):
            facts = {
                "command": command(options, runs="RUNS", data_dir="DIR"),
                "versions": versions("attnkit", "torch"),
                "load of the machine": load_before(),
            }
            found = evaluated(name, options)
            publish_part(
                "naive-bayes", TITLE, name, RECIPES, facts, [*section(name, found, options)]
            )
            text = json.dumps(found).replace(str(options.runs.resolve()), "runs")
            objects[name] = json.loads(text.replace(str(options.runs), "runs"))
    keep_others(RESULTS / "naive-bayes.json", objects, RECIPES)


if __name__ == "__main__":
    main()
