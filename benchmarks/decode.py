"""How fast a trained run decodes, and whether the batch changes what it says.

    python benchmarks/decode.py RUN INPUT.txt [--lines 1000] [--threads 2] [--repeats 3]

Prints sentences and output tokens per second of greedy search, beams and sampling (median of the
repeats, model loading left out), then how many lines differ between decoding alone and in batches.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.search import translate

SEARCHES = {
    "greedy": {"method": "greedy"},
    "beam 5": {"method": "beam", "beam": 5},
    "beam 10": {"method": "beam", "beam": 10},
    "top-p 0.9": {"method": "sample", "top_p": 0.9},
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("input", type=Path)
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = Run.open(options.run)
    model, tokenizer = run.model(), run.tokenizer()
    texts = options.input.read_text(encoding="utf-8").split("\n")[: options.lines]

    def decode(spec: SearchConfig) -> list[str]:
        answers = translate(model, tokenizer, texts, spec, max_source=run.recipe.data.max_length)
        return [answer[0][0] for answer in answers]

    shape = run.recipe.model
    print(
        f"{run.path}: {shape.layers.encoder}+{shape.layers.decoder} layers, width {shape.width}, "
        f"{len(tokenizer.target)} pieces; {len(texts)} lines, {options.threads} threads\n"
    )
    print("| search | sentences/s | tokens/s | lines that differ alone |")
    print("| --- | ---: | ---: | ---: |")
    for name, changes in SEARCHES.items():
        spec = run.recipe.search.model_copy(update={**changes, "n_best": 1})
        seconds = []
        for _ in range(options.repeats):
            start = time.perf_counter()
            found = decode(spec)
            seconds.append(time.perf_counter() - start)
        tokens = sum(map(len, tokenizer.target.encode(found)))
        alone = decode(spec.model_copy(update={"batch_tokens": 1}))
        differ = sum(one != other for one, other in zip(found, alone, strict=True))
        middle = statistics.median(seconds)
        print(f"| {name} | {len(texts) / middle:.1f} | {tokens / middle:.0f} | {differ} |")


if __name__ == "__main__":
    main()
