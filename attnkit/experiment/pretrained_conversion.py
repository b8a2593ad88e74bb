"""Attention surgery on pretrained causal models of Hugging Face.

The stages are those of `conversion`: `swapped`, `transferred`, `tuned`; the metric is perplexity on plain text. All
layers get the mechanism, and the last stage is saved as a model folder.
"""

import codecs
import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit import __version__
from attnkit.errors import DataError, NotFiniteError, OutputPathError, UsageError
from attnkit.experiment.attention_transfer import MATCHING, make_updates, stages
from attnkit.huggingface import Pretrained, open_model, quiet, surgery
from attnkit.recipe import Recipe
from attnkit.recipe.loading import load_resolved
from attnkit.recipe.schema import AttentionConfig
from attnkit.scoring import Comparison, ScoreRow, side_by_side
from attnkit.scoring.metrics import Score
from attnkit.scoring.results import System
from attnkit.storage.cache import fill_folder
from attnkit.storage.files import check_space, make_folder, open_file, sha256_json
from attnkit.train import events
from attnkit.train.events import Emit, Event, NoteEvent
from attnkit.train.signals import StopSignals

RATE = 1e-3
"""Initial learning rate of attention transfer, which starts from trained weights."""
TEST_TOKENS = 2**15
"""Maximum number of tokens for perplexity."""
HELD_OUT = 10
"""Without a test text, the last 1 / HELD_OUT of the text is held out."""
MAX_BYTES = 2**25
"""Maximum number of bytes read from a text."""
SEED = 1
KEYS = ("train.lr", "train.batch_tokens", "train.precision")
"""Recipe keys that a conversion uses."""
DEFAULTS = b"""
task: language-modeling
data: {train: text}
model: {shape: decoder}
train: {lr: 1e-4, batch_tokens: 2048, precision: fp32}
"""


@dataclass(frozen=True, kw_only=True)
class PretrainedSettings:
    """Settings of one conversion of a Hugging Face model."""

    model: str
    """Directory or OWNER/MODEL."""
    recipe: Recipe
    """Recipe of `recipe_of`: decoder attention, and peak learning rate, tokens per update and precision."""
    text: Path
    """Plain text for training."""
    test: Path | None
    """Plain text for perplexity; None: the last tenth of `text`."""
    length: int
    """Number of tokens in a window."""
    transfer: int
    """Number of updates of attention transfer; 0 skips it."""
    tune: int
    """Number of updates of fine-tuning; 0 skips it."""
    out: Path
    """Parent of the folder of the converted model."""
    fresh: bool = False
    device: str = "auto"
    offline: bool = False

    @property
    def name(self) -> str:
        path = Path(self.model)
        return path.name if path.name not in ("", "..") else path.resolve().name

    @property
    def attention(self) -> AttentionConfig:
        return self.recipe.model.attention.decoder

    @property
    def stages(self) -> list[str]:
        """Stages to compare, first the original model."""
        return ["before", *stages(self.transfer, self.tune)]

    @property
    def folder(self) -> Path:
        """Folder of the converted model."""
        return self.out / f"{self.name}-{self.attention.name}"


def recipe_of(attention: str, overrides: Sequence[str]) -> Recipe:
    """Return a recipe with the new attention (a value of model.attention) and KEY=VALUE settings of training.

    Raises UsageError if a key is not in `KEYS` or the mechanism does not fit a pretrained causal model, or RecipeError
    if a value is invalid.
    """
    for override in overrides:
        if override.partition("=")[0] not in KEYS:
            raise UsageError(f"{override}: for a Hugging Face model, use only {', '.join(KEYS)}")
    recipe = load_resolved(Path("convert"), [f"model.attention={attention}", *overrides], DEFAULTS)
    default, new = AttentionConfig(), recipe.model.attention
    if (new.encoder, new.cross) != (default, default):
        raise UsageError(f"--attention {attention}: a causal model has decoder attention only")
    surgery.check(new.decoder.name, new.decoder.options())
    if (precision := recipe.train.precision) not in ("fp32", "bf16"):
        raise UsageError(f"train.precision={precision}: must be fp32 or bf16")
    return recipe


def convert(
    settings: PretrainedSettings, emit: Emit = events.ignore, *, notice: Callable[[str], object] | None = None
) -> Comparison:
    """Convert a model, score each stage, and save the last one; for `notice` see `StopSignals`.

    Raises:
        OutputPathError: If the folder already exists or cannot be created.
        UsageError: If the model cannot be converted, or `length` exceeds its maximum.
        DataError: If a text is too short or not UTF-8.
        StoppedError: If a signal arrives; nothing is written.
        AttnkitError: If the model cannot be opened.
    """
    with StopSignals(notice) as stop:
        return _PretrainedConversion(settings, stop, emit).run()


class _PretrainedConversion:
    def __init__(self, settings: PretrainedSettings, stop: StopSignals, emit: Emit) -> None:
        self.settings, self.stop, self.emit = settings, stop, emit

    @cached_property
    def teacher(self) -> Pretrained:
        """Original model."""
        name = self.settings.model
        opened = open_model(name, device=self.settings.device, offline=self.settings.offline)
        if opened.shape != "decoder":
            raise UsageError(
                f"{name}: is a model of shape {opened.shape}; convert supports causal language models, "
                "and attnkit's runs of any shape"
            )
        if surgery.is_converted(opened.path):
            raise UsageError(f"{name}: is already converted; use the original model")
        if opened.limit is not None and self.settings.length > opened.limit:
            raise UsageError(f"--length {self.settings.length}: {name} reads at most {opened.limit} tokens")
        return opened

    def run(self) -> Comparison:
        settings, emit = self.settings, self.emit
        self._check_folder(settings.fresh)
        emit(NoteEvent("opening the model", passing=True))
        model = self.teacher.model
        text, test = self._texts()
        emit(NoteEvent(f"text: {text.numel():,} tokens; perplexity on {test.numel():,} others"))
        student = copy.deepcopy(model)
        config = settings.attention
        layers = surgery.install(student, config.name, config.options(), settings.length)
        new = sum(weight.numel() for layer in layers.values() for weight in layer.parameters())
        emit(NoteEvent(f"layers with {config.name}: {len(layers)}, with {new:,} new weights"))
        check_space(settings.out, sum(x.nbytes for x in student.state_dict().values()))
        rows = list[ScoreRow]()
        for stage in settings.stages:
            key: Any = {"variant": stage, "seed": SEED}
            self._train(stage, student, [*layers], text)
            emit(NoteEvent(f"perplexity of {stage}", passing=True, **key))
            rows.append(self._score(stage, model if stage == "before" else student, test))
            emit(events.EvaluatedEvent(("test",), **key))
        result = side_by_side(rows, {settings.name: "before"})
        self._save(student, result)
        emit(NoteEvent(f"{settings.folder}: the converted model"))
        emit(events.ScoredEvent(result))
        return result

    def _check_folder(self, replace: bool) -> None:
        """Raise OutputPathError if the folder cannot be created, or holds something that must not be replaced."""
        out, folder = self.settings.out.absolute(), self.settings.folder
        parent = next(path for path in (out, *out.parents) if path.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
            raise OutputPathError(f"{folder}: cannot be created: {parent} is not a writable folder")
        if not os.path.lexists(folder):
            return
        if not surgery.is_converted(folder):
            raise OutputPathError(f"{folder}: exists and is not a converted model; use another --out")
        if not replace:
            raise OutputPathError(f"{folder}: already exists; use --fresh to replace it, or another --out")

    def _texts(self) -> tuple[Int[Tensor, "N L"], Int[Tensor, "n L"]]:
        settings = self.settings
        text = self._windows(settings.text)
        if settings.test is not None:
            test = self._windows(settings.test)
        else:
            held_out = -(-len(text) // HELD_OUT)
            text, test = text[:-held_out], text[-held_out:]
        if not len(text):
            raise DataError(
                f"{settings.text}: too short: use at least {2 * settings.length} tokens, or "
                "--test, or a smaller --length"
            )
        return text, test[: max(1, TEST_TOKENS // settings.length)]

    def _windows(self, path: Path) -> Int[Tensor, "N L"]:
        with open_file(path) as file:
            data = file.read(MAX_BYTES)
        try:
            # a truncated text may end within a character
            decoder = codecs.getincrementaldecoder("utf-8-sig")()
            text = decoder.decode(data, final=len(data) < MAX_BYTES).replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is not UTF-8 text (byte {error.start})") from error
        with quiet():
            ids = self.teacher.tokenizer(text, add_special_tokens=False)["input_ids"]
        length = self.settings.length
        if len(ids) < length:
            raise DataError(f"{path}: has {len(ids)} tokens, but a window needs {length} (--length)")
        return torch.tensor(ids[: len(ids) // length * length]).view(-1, length)

    def _train(self, stage: str, student: nn.Module, layers: list[str], text: Int[Tensor, "N L"]) -> None:
        batches = self._batches(text)
        if stage == "transferred":
            loss_name, updates = MATCHING, self.settings.transfer
            modules = {name: student.get_submodule(name) for name in layers}
            weights = [weight for module in modules.values() for weight in module.parameters()]
            compute_gradients = partial(self._match, modules)
        elif stage == "tuned":
            loss_name, updates = "training loss", self.settings.tune
            weights, compute_gradients = [*student.parameters()], partial(self._predict, student)
        else:
            return

        def rate(update: int) -> float:
            """Return the linearly falling learning rate; fine-tuning warms up over a tenth of the updates."""
            if stage == "transferred":
                return RATE * (1 - (update - 1) / updates)
            warmup = update / max(1, updates // 10)
            return self.settings.recipe.train.lr * min(warmup, (updates - update + 1) / updates)

        def backward() -> tuple[float, int]:
            self.stop.obey("; nothing was written")
            ids = next(batches)
            loss = compute_gradients(ids)
            if not np.isfinite(loss):
                advice = "; try a lower train.lr" if stage == "tuned" else ""
                raise NotFiniteError(f"{stage}: the loss is not finite{advice}")
            return loss, ids.numel()

        def emit(event: Event) -> None:
            self.emit(replace(event, variant=stage, seed=SEED))

        name, device = self.settings.name, str(self.teacher.device)
        size = sum(weight.numel() for weight in student.parameters())
        emit(events.StartedEvent(name, updates, size, device, self.settings.recipe.train.precision))
        start = time.perf_counter()
        losses = make_updates(loss_name, weights, updates, rate, backward, emit)
        emit(NoteEvent(f"{loss_name} {losses[0]:.4g} -> {mean(losses[-10:]):.4g}"))
        emit(events.FinishedEvent(updates, time.perf_counter() - start, "steps"))

    def _autocast(self) -> torch.autocast:
        bf16 = self.settings.recipe.train.precision == "bf16"
        return torch.autocast(self.teacher.device.type, torch.bfloat16, enabled=bf16)

    @property
    def _rows(self) -> int:
        """Number of windows per update."""
        return max(1, self.settings.recipe.train.batch_tokens // self.settings.length)

    def _batches(self, text: Int[Tensor, "N L"]) -> Iterator[Int[Tensor, "R L"]]:
        generator = torch.Generator().manual_seed(SEED)
        order = torch.empty(0, dtype=torch.long)
        while True:
            while len(order) < self._rows:
                order = torch.cat((order, torch.randperm(len(text), generator=generator)))
            rows, order = order[: self._rows], order[self._rows :]
            yield text[rows].to(self.teacher.device)

    def _match(self, layers: Mapping[str, nn.Module], ids: Int[Tensor, "R L"]) -> float:
        """Compute the gradients of attention transfer and return the mean loss of the layers."""
        with self._autocast():
            calls = layer_calls(self.teacher.model, [*layers], ids)
        losses = list[float]()
        for name, (args, kwargs, target) in calls.items():
            with self._autocast():
                y = layers[name](*args, **kwargs)[0]
            loss = (y.float() - target.float()).square().mean()
            (loss / len(layers)).backward()
            losses.append(loss.item())
        return mean(losses)

    def _predict(self, student: nn.Module, ids: Int[Tensor, "R L"]) -> float:
        """Compute the clipped gradients of next-token prediction and return the loss."""
        with self._autocast():
            loss = nll(student, ids).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        return loss.item()

    @torch.no_grad()
    def _score(self, stage: str, model: Any, test: Int[Tensor, "n L"]) -> ScoreRow:
        """Score the perplexity of all windows, without the first token of each."""
        losses = []
        for ids in test.split(self._rows):  # type: ignore[no-untyped-call]
            self.stop.obey("; nothing was written")
            losses.append(nll(model, ids.to(self.teacher.device)).sum(1).double().cpu())
        sums = torch.cat(losses).numpy()
        if not np.isfinite(sums).all():
            raise NotFiniteError(f"{stage}: the model outputs NaN or infinity")
        statistics = np.stack([sums, np.full(len(sums), test.shape[1] - 1.0)], 1)
        score = Score.of("perplexity", statistics, f"unit:token|windows:{test.shape[1]}|version:attnkit-{__version__}")
        run = self.settings.model if stage == "before" else str(self.settings.folder)
        system = System(self.settings.name, stage, SEED, run, sum(weight.numel() for weight in model.parameters()))
        return ScoreRow(system, "test", {"perplexity": score}, len(sums), sha256_json(test.tolist()))

    def _save(self, student: Any, comparison: Comparison) -> None:
        settings, config = self.settings, self.settings.attention
        facts = {
            "attention": config.name,
            "options": config.options(),
            "length": settings.length,
            "model": settings.model,
            "transfer": settings.transfer,
            "tune": settings.tune,
            "lr": settings.recipe.train.lr,
            "batch_tokens": settings.recipe.train.batch_tokens,
            "precision": settings.recipe.train.precision,
            "perplexity": {r.variant: r.scores["perplexity"].stored.score for r in comparison.rows},
            **self.teacher.facts,
        }
        make_folder(settings.out)
        self._check_folder(settings.fresh)  # another command may have created it meanwhile
        fill_folder(settings.folder, lambda folder: surgery.save(student, self.teacher.tokenizer, folder, facts))


@torch.no_grad()
def layer_calls(
    model: Any, layers: Sequence[str], ids: Int[Tensor, "R L"]
) -> dict[str, tuple[tuple[Any, ...], dict[str, Any], Float[Tensor, "R L W"]]]:
    """Run a model on windows without pads; return the arguments and outputs of these attention modules by name."""
    calls = {}

    def record(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        # no layer needs a mask without padding, and its form depends on the implementation
        calls[name] = args, {**kwargs, "attention_mask": None}, out[0]

    with ExitStack() as hooks, quiet():
        for name in layers:
            handle = model.get_submodule(name).register_forward_hook(partial(record, name), with_kwargs=True)
            hooks.callback(handle.remove)
        model.base_model(input_ids=ids, use_cache=False)
    return calls


def nll(model: Any, ids: Int[Tensor, "R L"]) -> Float[Tensor, "R L-1"]:
    """Return the negative log-likelihood in nats of each token except the first."""
    with quiet():
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2).float(), ids[:, 1:], reduction="none")
