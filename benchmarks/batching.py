"""Does a sentence's output depend on the batch that it is decoded in?

    python benchmarks/batching.py RUN --data-dir DIR [--split test] [--budgets 2048 8192 32768]

Decodes a split in float32 line by line (a batch budget of 1 puts each sentence in a batch of its
own) and in batches of several budgets, and counts the lines whose text differs: for beam 5, for
greedy search, and for sampling, whose draws depend on seed and line only.  Also the largest
difference of a logit between a sentence alone and in a batch.  Writes results/batching.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from common import command, load_before, publish, say, table, versions

from attnkit.data.batch import collate
from attnkit.data.corpus import Corpus
from attnkit.data.preparation import encode_split
from attnkit.data.tokenizer import PAD
from attnkit.models import Model
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.search import translate

SEARCHES: dict[str, dict[str, object]] = {
    "beam 5": {"method": "beam", "beam": 5},
    "greedy": {"method": "greedy"},
    "sampling": {"method": "sample"},
    "sampling, top-p 0.9": {"method": "sample", "top_p": 0.9},
}


def texts_of(run: Run, model: Model, lines: Sequence[str], spec: SearchConfig) -> list[str]:
    """The best output of each line."""
    length = run.recipe.data.max_length
    found = translate(model, run.tokenizer(), lines, spec, max_source=length)
    return [answers[0][0] for answers in found]


@torch.inference_mode()
def logits_difference(run: Run, model: Model, corpus: Corpus, split: str, size: int) -> float:
    """The largest difference of a logit of real positions, alone and among `size` sentences."""
    encoded = encode_split(corpus, run.tokenizer(), run.recipe, split)
    largest = 0.0
    for start in range(0, len(encoded), size):
        rows = torch.arange(start, min(start + size, len(encoded))).numpy()
        batch = collate(encoded, rows)
        together = model(batch.source, batch.input)
        for place in range(len(rows)):
            one = collate(encoded, rows[place : place + 1])
            alone = model(one.source, one.input)[0]
            length = int((one.output[0] != PAD).sum())
            gap = (alone[:length] - together[place, :length]).abs().max()
            largest = max(largest, float(gap))
    return largest


def main() -> None:
    """Decode, count and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--data-dir", type=Path, help="folder of corpora; default $ATTNKIT_DATA")
    parser.add_argument("--split", default="test")
    parser.add_argument("--budgets", type=int, nargs="+", default=[2048, 8192, 32768])
    parser.add_argument("--lines", type=int, default=0, help="only the first N; 0 is all")
    options = parser.parse_args()
    load = load_before()
    run = Run.open(options.run)
    model = run.model()
    corpus = Corpus.open(run.recipe.data, run.recipe.task, data_dir=options.data_dir)
    lines = [row.source for row in corpus.rows(options.split)]
    lines = lines[: options.lines or len(lines)]
    rows = []
    for name, changes in SEARCHES.items():
        spec = run.recipe.search.model_copy(update={**changes, "n_best": 1, "batch_tokens": 1})
        say(f"{name}: each line alone")
        alone = texts_of(run, model, lines, spec)
        for budget in options.budgets:
            say(f"{name}: batches of {budget}")
            found = texts_of(run, model, lines, spec.model_copy(update={"batch_tokens": budget}))
            differ = sum(one != two for one, two in zip(alone, found, strict=True))
            share = f"{100 * differ / len(lines):.2f} %"
            rows.append((name, f"{budget:,}", f"{len(lines):,}", differ, share))
    say("logits")
    gap = logits_difference(run, model, corpus, options.split, 64)
    facts = {
        "command": f"`{command(options, run='RUN', data_dir='DATA')}`",
        "versions": versions("attnkit", "torch"),
        "run": f"{run.name}, {run.variant}, seed {run.seed}; decoding in float32, {torch.get_num_threads()} threads",
        "load of the machine": load,
        "largest difference of a logit, alone and in batches of 64": f"{gap:.1e} (at most 1e-4)",
    }
    body = [
        f"Lines of {run.recipe.data.corpus or 'the corpus'}, {options.split}, whose text differs"
        " from that of decoding the line alone (beam 5: at most 0.1 %; sampling: the same draws):",
        "",
        *table(["search", "batch tokens", "lines", "differ", "share"], rows),
    ]
    publish("batching", "Outputs alone and in batches", facts, body)


if __name__ == "__main__":
    main()
