"""Run folders: the one package that knows their files.

    runs/<recipe>/<variant>/seed-<k>/
        recipe.yaml         the resolved recipe
        manifest.json       versions, hashes, device, threads, precision, seed, outcome of the training
        tokenizer.model     and tokenizer.target.model if vocabularies are separate
        metrics.jsonl       the training log, one JSON object per line
        checkpoints/        see attnkit.train.checkpoint
        model.safetensors   the selected weights
        outputs/<split>.hyp.txt, scores.json, and tensorboard/, wandb/ if the recipe enables them
        data/<split>.jsonl  the rows that were scored; see attnkit.runs.run_corpus

`attnkit runs pack --results` writes a run without its weights to one file, which opens like the folder; see
attnkit.runs.packing.

Every file except the log is written atomically. The log grows line by line and is synced to disk with each checkpoint;
on resume it is truncated to the checkpoint's step, so that it ends up equal to the log of an uninterrupted run.

Start with `run.Run` (a run folder and its contents), `layout.run_path` (its path) and `find.find_runs` (the runs below
some folders). Imports `models`, `data`, `recipe`, `storage` and what is below them.
"""

from attnkit.runs.find import find_runs, is_run, one_task
from attnkit.runs.layout import run_path
from attnkit.runs.results import Results
from attnkit.runs.run import Run

__all__ = ["Results", "Run", "find_runs", "is_run", "one_task", "run_path"]
