"""What the ranks of a pool do in tests; every function here is called by each rank."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnkit import models
from attnkit.data.corpus import Corpus
from attnkit.data.preparation import prepare
from attnkit.distributed import group
from attnkit.errors import StoppedError
from attnkit.nbce import open_model, question_sets
from attnkit.nbce.opening import open_run
from attnkit.recipe import Recipe
from attnkit.runs import Run
from attnkit.runs.json_files import StoredContexts
from attnkit.scoring.teacher_forced import teacher_forced
from attnkit.search import translate
from attnkit.train.batch_stream import BatchStream
from attnkit.train.fit import Training
from attnkit.train.loss import LossOptions
from attnkit.train.optimiser import weights_of
from attnkit.train.parallel import full_state_dict
from attnkit.train.precision import GradientWorker
from helpers.small import StopAt, job, run_training


def train(folder: Path, recipe: Recipe, stop: int | None = None) -> None:
    """A training in folder/run, stopped after an update where one is given; rank 0 made the run."""
    group.join()
    made = _job(folder, recipe, StopAt([stop] if stop else []))
    try:
        run_training(made)
    except StoppedError:
        assert stop
    group.barrier()  # rank 0 has written everything


def train_alone(folder: Path, recipe: Recipe) -> None:
    """The same training by one process without a group, which computes as ranks do here."""
    run_training(job(folder, recipe))


def _job(folder: Path, recipe: Recipe, stop: StopAt | None = None) -> Any:
    """The same for all ranks, of which rank 0 makes the files."""
    if group.is_main_process():
        job(folder, recipe)
    group.barrier()
    return job(folder, recipe, stop)


def state_of(folder: Path, recipe: Recipe) -> str:
    """A digest of all tensors that a training resumes with, gathered."""
    group.join()
    training = Training(_job(folder, recipe))
    training.resume()
    tensors, _ = training.pack()
    text = digest(training.full_state_dict({n: t for n, t in tensors.items() if n != "rng.cpu"}))
    if training.writers is not None:
        training.writers.close()
    return text


def digest(tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].detach().cpu().numpy().tobytes())
    return found.hexdigest()


def gradient_descent(folder: Path, recipe: Recipe, batches: int, steps: int) -> dict[str, Tensor]:
    """Weights after updates of plain gradient descent in float64, each of so many batches."""
    group.join()
    prepared = prepare(recipe, cache=folder / "cache")
    torch.manual_seed(1)
    sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
    model, parallel = models.build_for(recipe, sizes).double(), recipe.train.parallel
    worker = GradientWorker(model, "fp32", parallel=parallel)
    descent = torch.optim.SGD(worker.model.parameters(), lr=0.5)
    stream = BatchStream(lambda _: prepared.train, recipe.train.batch_tokens, 1)
    own = batches // group.world_size()
    for _ in range(steps):
        taken = stream.take(own, group.rank(), group.world_size())
        tokens = int(group.all_reduce_sum(torch.tensor(sum(batch.tokens for batch in taken))))
        for number, batch in enumerate(taken, 1):
            with worker.communicating(last=number == own):
                worker.backward(worker.losses(batch, LossOptions()).total, tokens)
        descent.step()
        descent.zero_grad()
    found = full_state_dict(weights_of(worker.model))
    return {name: tensor.clone() for name, tensor in found.items()}


def translate_and_score(path: Path, texts: list[str], batch_tokens: int) -> tuple[list[Any], bytes]:
    """Outputs and teacher-forced scores; the main process alone reads the texts."""
    group.join()
    texts = texts if group.is_main_process() else []
    run = Run.open(path)
    model, spec = run.model("cpu"), run.recipe.search
    spec = spec.model_copy(update={"batch_tokens": batch_tokens})
    found = list(translate(model, run.tokenizer(), texts, spec, max_source=24, block=40))
    encoded = prepare(run.recipe, cache=path.parent / "cache").valid
    return found, np.asarray(teacher_forced(model, encoded)).tobytes()


def answer_questions(path: Path, pretrained: Path) -> list[Any]:
    """Answers to questions by a run, and by a Hugging Face model."""
    group.join()
    question_sets.PORTION = 2  # six questions are three portions
    run, found = Run.open(path), list[Any]()
    corpus = Corpus.open(run.recipe.data, run.recipe.task)
    for reader in (open_run(run), open_model(pretrained, device="cpu")):
        model = question_sets.EvaluatedModel.of_reader(reader, "x", "toy", path, None, StoredContexts())
        spec = run.recipe.contexts.model_copy(update={"counts": (2,), "methods": ("entropy", "concat")})
        for condition in question_sets.conditions(corpus, "test", spec):
            asked = question_sets.QuestionLines(model, condition)
            found.append(asked.decode(run.recipe.search, lambda _: None)[0])
    return found


def fail_on_last(recipe: Recipe, folder: Path, kind: str) -> None:
    """A training in which something goes wrong on the last rank alone."""
    group.join()
    made = _job(folder, recipe)
    if kind == "data" and group.rank() == group.world_size() - 1:
        changed = recipe.train.model_copy(update={"batch_tokens": 57})
        made.__dict__["recipe"] = recipe.model_copy(update={"train": changed})
    if kind == "memory" and group.rank() == group.world_size() - 1:
        GradientWorker.backward = _exhausted  # type: ignore[method-assign]
    try:
        run_training(made)
    finally:
        GradientWorker.backward = PLAIN  # type: ignore[method-assign]


PLAIN = GradientWorker.backward


def _exhausted(*_: Any) -> None:
    raise MemoryError("out of memory")


def join_with_own_command() -> None:
    """Ranks with command lines of their own."""
    group.join(["train", os.environ["RANK"]])
