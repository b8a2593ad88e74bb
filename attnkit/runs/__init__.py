"""The run directory: the one place that knows its files.

    runs/<recipe>/<variant>/seed-<k>/
        recipe.yaml         the resolved recipe
        manifest.json       versions, hashes, device, threads, precision, seed, what was reached
        tokenizer.model     and tokenizer.target.model where vocabularies are separate
        metrics.jsonl       the log of training, one JSON object a line
        checkpoints/        see attnkit.train.checkpoint
        model.safetensors   the chosen weights
        outputs/<split>.hyp.txt, scores.json, and tensorboard/, wandb/ where the recipe says so
        data/<split>.jsonl  what it was scored on; see attnkit.runs.run_corpus

`attnkit runs pack --results` makes one file of it without weights, which is opened like the folder;
see attnkit.runs.packing.

Every file but the log is written whole or not at all. The log grows line by line and is forced to the disk with each
checkpoint; on resume it is cut back to the checkpoint's step, so that it ends as that of an uninterrupted run.

Start with `run.Run` (a folder and all that it holds), `layout.run_path` (where it lies) and
`find.find_runs` (those below some folders). Imports `models`, `data`, `recipe`, `storage` and
what is below them.
"""

from attnkit.runs.find import find_runs, is_run, one_task
from attnkit.runs.layout import run_path
from attnkit.runs.results import Results
from attnkit.runs.run import Run

__all__ = ["Results", "Run", "find_runs", "is_run", "one_task", "run_path"]
