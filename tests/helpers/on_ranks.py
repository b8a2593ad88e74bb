"""Functions that every rank of a pool calls in tests."""

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
from attnkit.train.fit import Training, TrainingJob
from attnkit.train.loss import LossOptions
from attnkit.train.optimizer import weights_of
from attnkit.train.parallel import full_state_dict
from attnkit.train.precision import GradientWorker
from helpers.small import StopAt, job, run_training


def train(folder: Path, recipe: Recipe, stop: int | None = None) -> None:
    """Train in folder/run; stop after update `stop` if it is set."""
    group.join()
    shared_job = _job(folder, recipe, StopAt([stop] if stop else []))
    try:
        run_training(shared_job)
    except StoppedError:
        assert stop
    group.barrier()  # until rank 0 has written everything


def train_alone(folder: Path, recipe: Recipe) -> None:
    """Train in one process of the pool, without a group."""
    run_training(job(folder, recipe))


def _job(folder: Path, recipe: Recipe, stop: StopAt | None = None) -> TrainingJob:
    """Return the same job on all ranks; rank 0 creates the files."""
    if group.is_main_process():
        job(folder, recipe)
    group.barrier()
    return job(folder, recipe, stop)


def state_of(folder: Path, recipe: Recipe) -> str:
    """Return a digest of all tensors, gathered from the ranks, with which a training resumes."""
    group.join()
    training = Training(_job(folder, recipe))
    training.resume()
    tensors, _ = training.pack()
    tensors = training.full_state_dict({name: x for name, x in tensors.items() if name != "rng.cpu"})
    if training.writers is not None:
        training.writers.close()
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def gradient_descent(folder: Path, recipe: Recipe, batches: int, steps: int) -> dict[str, Tensor]:
    """Return the weights after plain gradient descent in float64, with `batches` batches per update."""
    group.join()
    prepared = prepare(recipe, cache=folder / "cache")
    torch.manual_seed(1)
    sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
    model, parallel = models.build_for(recipe, sizes).double(), recipe.train.parallel
    worker = GradientWorker(model, "fp32", parallel=parallel)
    optimizer = torch.optim.SGD(worker.model.parameters(), lr=0.5)
    stream = BatchStream(lambda _: prepared.train, recipe.train.batch_tokens, 1)
    own = batches // group.world_size()
    for _ in range(steps):
        taken = stream.take(own, group.rank(), group.world_size())
        tokens = int(group.all_reduce_sum(torch.tensor(sum(batch.tokens for batch in taken))))
        for number, batch in enumerate(taken, 1):
            with worker.communicating(last=number == own):
                worker.backward(worker.losses(batch, LossOptions()).total, tokens)
        optimizer.step()
        optimizer.zero_grad()
    return {name: tensor.clone() for name, tensor in full_state_dict(weights_of(worker.model)).items()}


def translate_and_score(path: Path, texts: list[str], batch_tokens: int) -> tuple[list[Any], bytes]:
    """Return outputs and teacher-forced scores; only the main process has the texts."""
    group.join()
    texts = texts if group.is_main_process() else []
    run = Run.open(path)
    model, spec = run.model("cpu"), run.recipe.search
    spec = spec.model_copy(update={"batch_tokens": batch_tokens})
    outputs = list(translate(model, run.tokenizer(), texts, spec, max_source=24, block=40))
    encoded = prepare(run.recipe, cache=path.parent / "cache").valid
    return outputs, np.asarray(teacher_forced(model, encoded)).tobytes()


def answer_questions(path: Path, pretrained: Path) -> list[Any]:
    """Return answers to questions by a run, and by a Hugging Face model."""
    group.join()
    question_sets.PORTION = 2  # six questions are three portions
    run, outputs = Run.open(path), list[Any]()
    corpus = Corpus.open(run.recipe.data, run.recipe.task)
    for reader in (open_run(run), open_model(pretrained, device="cpu")):
        model = question_sets.EvaluatedModel.of_reader(reader, "x", "toy", path, None, StoredContexts())
        spec = run.recipe.contexts.model_copy(update={"counts": (2,), "methods": ("entropy", "concat")})
        for condition in question_sets.conditions(corpus, "test", spec):
            lines = question_sets.QuestionLines(model, condition)
            outputs.append(lines.decode(run.recipe.search, lambda _: None)[0])
    return outputs


def fail_on_last(recipe: Recipe, folder: Path, kind: str) -> None:
    """Train with other data on the last rank, or without enough memory there."""
    group.join()
    shared_job = _job(folder, recipe)
    is_last = group.rank() == group.world_size() - 1
    if kind == "data" and is_last:
        train = recipe.train.model_copy(update={"batch_tokens": 57})
        shared_job.__dict__["recipe"] = recipe.model_copy(update={"train": train})
    if kind == "memory" and is_last:
        GradientWorker.backward = _out_of_memory  # type: ignore[method-assign]
    try:
        run_training(shared_job)
    finally:
        GradientWorker.backward = BACKWARD  # type: ignore[method-assign]


BACKWARD = GradientWorker.backward


def _out_of_memory(*_: Any) -> None:
    raise MemoryError("out of memory")


def join_with_own_command() -> None:
    """Join ranks with different command lines."""
    group.join(["train", os.environ["RANK"]])
