"""Whether the output for a sentence depends on the batch in which it is decoded.

    python benchmarks/batching.py RUN [--data-dir DIR]

Decodes the test set in float32 line by line (with a budget of 1 token each sentence is a batch) and in batches of
several budgets, and counts the lines with different texts: for beam 5, for greedy search, and for sampling, whose
draws depend on seed and line only. Also measures the largest difference of a logit between a sentence alone and in a
batch. Writes results/batching.md.
"""

from collections.abc import Sequence

import torch
from common import arguments, facts, publish, say, table

from attnkit.data.batch import collate
from attnkit.data.corpus import Corpus
from attnkit.data.preparation import encode_split
from attnkit.data.tokenizer import PAD
from attnkit.models import Model
from attnkit.runs import Run
from attnkit.search import translate

SEARCHES: dict[str, dict[str, object]] = {
    "beam 5": {"method": "beam", "beam": 5},
    "greedy": {"method": "greedy"},
    "sampling": {"method": "sample"},
    "sampling, top-p 0.9": {"method": "sample", "top_p": 0.9},
}
BUDGETS = (2048, 8192, 32768)
"""Batch tokens."""


def decode(run: Run, model: Model, lines: Sequence[str], search: str, budget: int) -> list[str]:
    """Return the best output of each line."""
    changes = {**SEARCHES[search], "n_best": 1, "batch_tokens": budget}
    spec = run.recipe.search.model_copy(update=changes)
    say(f"{search}, batch tokens {budget}")
    found = translate(model, run.tokenizer(), lines, spec, max_source=run.recipe.data.max_length)
    return [answers[0][0] for answers in found]


@torch.inference_mode()
def logits_difference(run: Run, model: Model, corpus: Corpus, size: int) -> float:
    """Return the largest difference of a logit at real positions, alone and among `size` sentences."""
    encoded = encode_split(corpus, run.tokenizer(), run.recipe, "test")
    largest = 0.0
    for start in range(0, len(encoded), size):
        rows = torch.arange(start, min(start + size, len(encoded))).numpy()
        batch = collate(encoded, rows)
        together = model(batch.source, batch.input)
        for place in range(len(rows)):
            single = collate(encoded, rows[place : place + 1])
            alone = model(single.source, single.input)[0]
            length = int((single.output[0] != PAD).sum())
            largest = max(largest, float((alone[:length] - together[place, :length]).abs().max()))
    return largest


def main() -> None:
    options = arguments(__doc__, "run")
    about = facts(options)
    run = Run.open(options.run)
    model = run.model()
    corpus = Corpus.open(run.recipe.data, run.recipe.task)
    lines = [row.source for row in corpus.rows("test")]
    rows = []
    for search in SEARCHES:
        alone = decode(run, model, lines, search, 1)
        for budget in BUDGETS:
            differ = sum(map(str.__ne__, alone, decode(run, model, lines, search, budget)))
            rows.append((search, f"{budget:,}", f"{len(lines):,}", differ, f"{100 * differ / len(lines):.2f} %"))
    threads = torch.get_num_threads()
    about["run"] = f"{run.name}, {run.variant}, seed {run.seed}; decoding in float32, {threads} threads"
    difference = logits_difference(run, model, corpus, 64)
    about["largest difference of a logit, alone and in batches of 64"] = f"{difference:.1e} (at most 1e-4)"
    body = [
        f"Lines of {run.recipe.data.corpus or 'the corpus'}, test, whose text differs from that of decoding the line "
        "alone (beam 5: at most 0.1 %; sampling: the same draws):",
        table("search | batch tokens | lines | differ | share", rows),
    ]
    publish("batching", "Outputs alone and in batches", about, body)


if __name__ == "__main__":
    main()
