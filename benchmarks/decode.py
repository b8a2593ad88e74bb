"""Decoding speed of a trained run, compared with CTranslate2 with the same weights.

    python benchmarks/decode.py RUN INPUT REFERENCES [--rounds 5] [--threads 1]

attnkit in fp32 and bf16, as far as the processor has them, and CTranslate2 in float32 and int8 take turns, round after
round, in one process: 1,000 lines, and a tenth of the lines one at a time, by beam 5 and by greedy search, without
opening the models. Writes results/decoding.md with BLEU, the lines that differ from those of attnkit in fp32, and the
time of single operations in one step of one line. Ratios are of processor time, which depends less on other work on
the machine. Needs `pip install '.[ctranslate2]'`.
"""

import importlib
import statistics
import time
import timeit
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import sacrebleu
import torch
from common import arguments, facts, publish, say, spread, table

from attnkit.errors import UnavailableError
from attnkit.export.to_ctranslate2 import CTranslate2Model, open_run
from attnkit.memory import keep_freed_memory
from attnkit.models import Model
from attnkit.models.fast_decoder import FastDecoder
from attnkit.models.precision import lower_precision
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.search import decoding, translate
from attnkit.search.base import predict, topk
from attnkit.storage.cache import cache_dir

SEARCHES: dict[str, dict[str, Any]] = {"beam 5": {"method": "beam", "beam": 5}, "greedy": {"method": "greedy"}}
NOTE = """\
Each operation is repeated, so that its weights and code stay in caches: no search over separate operations of PyTorch
is faster. The rest of the step is Python, views, copies and bookkeeping, and weights and code that come from main
memory."""
OURS, PEER = "attnkit, fp32", "CTranslate2, float32"
LINES, STEPS = 1000, 10


def systems(run: Run, threads: int) -> dict[str, Any]:
    """Return the models by name."""
    models = dict[str, Any]()
    for precision in ("fp32", "bf16"):
        model = run.model()
        with suppress(UnavailableError):
            lower_precision(model, precision)
            models[f"attnkit, {precision}"] = model
    peer, small = open_run(run, "cpu"), open_run(run, "cpu")
    assert isinstance(peer, CTranslate2Model)
    folder, library = cache_dir() / "ctranslate2" / run.weights_sha256, importlib.import_module("ctranslate2")
    small.translator = library.Translator(str(folder), "cpu", compute_type="int8", intra_threads=threads)
    return {**models, PEER: peer, "CTranslate2, int8": small}


@torch.inference_mode()
def operations(model: Model, beams: int = 5) -> list[tuple[str, int, float]]:
    """Return the operations of a step of one line: their number, and microseconds of each, alone.

    The last entry is a whole step, from the difference of two searches that never end.
    """
    reader = FastDecoder.of(model)
    assert reader is not None
    block, count, width = reader.blocks[0], len(reader.blocks), reader.embedding.width
    heads = block.self_attention.heads
    x, inner = torch.randn(beams, width), block.up(torch.randn(beams, width))
    q, keys = torch.randn(heads, beams, width // heads), torch.randn(heads, 48, width // heads)
    bias, weights = torch.zeros(1, beams, 48), torch.zeros(heads, beams, 48)
    scores = predict(reader, x)
    parts: list[tuple[str, int, Callable[[], object]]] = [
        ("normalization", 3 * count + 1, lambda: torch.layer_norm(x, *block.norms[0])),
        ("queries, keys, values", count, lambda: block.self_attention.input(x)),
        ("other products of attention", 3 * count, lambda: block.self_attention.output(x)),
        ("feed-forward, two products", count, lambda: block.down(block.up(x))),
        ("its function", count, lambda: block.function(inner)),
        ("scores", 2 * count, lambda: torch.baddbmm(bias, q, keys.transpose(1, 2), alpha=0.2)),
        ("softmax", 2 * count, lambda: weights.softmax(2)),
        ("mixed values", 2 * count, lambda: torch.bmm(weights, keys)),
        ("residual sums", 3 * count, lambda: x + x),
        ("vocabulary", 1, lambda: reader.output(x)),
        ("log-softmax", 1, lambda: torch.log_softmax(scores, -1)),
        ("highest scores", 1, lambda: topk(scores, 2 * beams, True, torch.zeros(1, beams))),
    ]
    found = [(name, calls, 1e6 * fastest(part)) for name, calls, part in parts]
    source, ends = torch.full((1, 14), 9), []
    for length in (2, 2 + STEPS):
        spec = SearchConfig(beam=beams, max_length=length, min_length=length)
        ends.append(fastest(partial(decoding.search, model, source, spec, lines=[0]), 5))
    return [*found, ("the whole step", 1, 1e6 * (ends[1] - ends[0]) / STEPS)]


def fastest(part: Callable[[], object], calls: int = 20) -> float:
    """Return the minimum seconds of a call."""
    return min(timeit.repeat(part, number=calls, repeat=15)) / calls


def main() -> None:
    options = arguments(__doc__, "run", "input", "references", rounds=5, threads=1)
    about = facts(options, "ctranslate2", "sacrebleu")
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `attnkit generate` does
    run = Run.open(options.run)
    tokenizer, models = run.tokenizer(), systems(run, options.threads)
    texts, references = (path.read_text("utf-8").split("\n")[:LINES] for path in (options.input, options.references))

    def decode(name: str, search: str, lines: list[str]) -> list[str]:
        spec = run.recipe.search.model_copy(update={**SEARCHES[search], "n_best": 1})
        answers = translate(models[name], tokenizer, lines, spec, max_source=run.recipe.data.max_length)
        return [answer[0][0] for answer in answers]

    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    found: dict[tuple[str, str], list[str]] = {}
    for number in range(options.rounds + 1):
        say(f"round {number} of {options.rounds}" if number else "warming up")
        for search, name in ((search, name) for search in SEARCHES for name in models):
            start, used = time.perf_counter(), time.process_time()
            found[search, name] = decode(name, search, texts if number else texts[::20])
            seconds, used = time.perf_counter() - start, time.process_time() - used
            single = texts[:: 10 if number else 100]
            start = time.perf_counter()
            for line in single:
                decode(name, search, [line])
            if number:
                values[search, name, "speed"].append(len(texts) / seconds)
                values[search, name, "processor"].append(used)
                values[search, name, "alone"].append(1000 * (time.perf_counter() - start) / len(single))
    body = []
    for search in SEARCHES:
        rows = []
        for name in models:
            pairs = zip(values[search, PEER, "processor"], values[search, name, "processor"], strict=True)
            ratio = f"{statistics.median(theirs / its for theirs, its in pairs):.2f}"
            alone = f"{statistics.median(values[search, name, 'alone']):.1f}"
            outputs = found[search, name]
            bleu = f"{sacrebleu.corpus_bleu(outputs, [references]).score:.2f}"
            differ = sum(map(str.__ne__, outputs, found[search, OURS]))
            rows.append((name, *spread(values[search, name, "speed"]), ratio, alone, bleu, differ))
        header = f"system | sentences/s | range | speed beside {PEER} | ms for one line | BLEU | lines that differ"
        body += [f"## {search}", table(header, rows)]
    parts = operations(models[OURS])
    lines = [(name, calls, f"{each:.0f}", f"{calls * each:.0f}") for name, calls, each in parts]
    total = sum(calls * each for _, calls, each in parts[:-1])
    lines.insert(-1, ("their sum", sum(calls for _, calls, _ in parts[:-1]), "", f"{total:.0f}"))
    steps = table("operation | calls | us of each | us in all", lines)
    shape = run.recipe.model
    about |= {
        "threads of each system": str(options.threads),
        "model": f"`{run.name}`, {run.variant}: {shape.layers.encoder}+{shape.layers.decoder} layers, width "
        f"{shape.width}, ff {shape.ff}, {shape.heads} heads, {len(tokenizer.target):,} pieces",
        "rounds": f"{options.rounds}, the systems in turn; {len(texts):,} lines at once, {len(texts[::10]):,} alone",
    }
    publish(
        "decoding",
        "Decoding beside CTranslate2, with the same weights",
        about,
        [*body, "## One step of one line, beam 5", NOTE, steps],
    )


if __name__ == "__main__":
    main()
