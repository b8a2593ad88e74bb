"""`attnkit convert`: another attention mechanism in a trained model, and what it costs."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from attnkit.cli import completion, console, options
from attnkit.cli.options import argument, check_options, flag, value
from attnkit.device import load_note
from attnkit.errors import MissingInputError, UsageError
from attnkit.runs import is_run, run_path


def convert(
    model: Path = argument(
        "MODEL",
        "Folder of a finished run (seed-N), or a causal Hugging Face model: folder or hub name.",
    ),
    overrides: list[str] | None = argument(
        "KEY=VALUE",
        "Override recipe keys of the fine-tuning, search or scoring, as in train.lr=1e-4; "
        "of a Hugging Face model train.lr, train.batch_tokens and train.precision.",
        default=None,
        autocompletion=completion.keys,
    ),
    *,
    attention: str = value(
        "WORD",
        "The new mechanism, as model.attention in a recipe: linear, {encoder: nystrom}, "
        "{name: performer, features: 128}. Places that are not named stay as they are.",
        default=...,
    ),
    transfer: int = value(
        "N",
        "Updates of attention transfer: each new layer learns the old one's output.",
        default=200,
        min=0,
    ),
    tune: int = value(
        "N", "Updates of fine-tuning of the whole model after that.", default=500, min=0
    ),
    text: Path | None = value(
        "FILE", "For a Hugging Face model: plain text that it learns from, without labels."
    ),
    test: Path | None = value(
        "FILE", "Plain text for its perplexity; by default the last tenth of --text."
    ),
    length: int | None = value("N", "Tokens of its windows of text. [default: 256]", min=2),
    out: options.Out = Path("runs"),
    fresh: bool = flag("--fresh", "Start over, replacing converted runs."),
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    as_json: bool = flag("--json", "Print events as JSON, one object per line."),
    quiet: bool = flag("--quiet", "Print only the final table.", "-q"),
) -> None:
    """Replace the attention mechanism of a trained model, and measure what that costs.

    Weights with matching names and shapes are kept, a Random Synthesizer starts from averaged maps,
    and other new weights are initialised. Then the new layers learn, on the training text, to
    reproduce the outputs of the old ones (attention transfer), and the whole model is fine-tuned.
    Each stage becomes a run, and the table compares them with the original run. Repeat the command
    to continue one that was stopped.

    Of a causal Hugging Face model all layers get the mechanism, which reads its queries, keys and
    values, the table has the perplexity of plain text, and one folder holds the last stage. A
    command that was stopped begins anew; --fresh replaces the folder.

      attnkit convert RUN --attention linear
      attnkit convert RUN --attention '{encoder: nystrom}' --tune 1000 train.lr=5e-4
      attnkit convert RUN --attention '{encoder: local, decoder: local}'
      attnkit convert OWNER/MODEL --attention linear --text corpus.txt
    """
    show = {"as_json": as_json, "quiet": quiet}
    how: Any = {"transfer": transfer, "tune": tune, "out": out, "fresh": fresh, "device": device,
                "offline": offline}  # fmt: skip
    given: Any = {"text": text, "test": test, "length": length or 256}
    named = (model / "config.json").is_file() or not model.exists()  # a folder, or of the hub
    pretrained = not is_run(str(model)) and (text is not None or named)
    if pretrained:
        _convert_pretrained(str(model), attention, overrides or [], show, {**how, **given})
    elif (text, test, length) != (None, None, None):
        raise UsageError(
            "--text, --test and --length are for Hugging Face models: a run has its corpus"
        )
    else:
        _convert_run(model, attention, overrides or [], show, {**how, "data_dir": data_dir})


def _convert_run(
    folder: Path, attention: str, words: list[str], show: dict[str, bool], how: dict[str, Any]
) -> None:
    """A run of attnkit; see `convert`."""
    from attnkit.cli.training_display import follow, use_command
    from attnkit.experiment import conversion
    from attnkit.experiment.conversion import ConversionSettings, converted_recipe
    from attnkit.runs import Run
    from attnkit.show.training_board import Board, BoardRun

    trained = Run.open(folder)
    trained.require_weights()
    recipe = converted_recipe(trained, attention, how["tune"], words, check_options)
    settings = ConversionSettings(run=trained, recipe=recipe, **how)

    if talks := not any(show.values()):
        console.say(f"{folder}: converted runs go to {settings.out / trained.name}")
    lines = tuple(BoardRun(variant, trained.seed) for variant in settings.stages)
    board = Board(trained.name, lines, busy=load_note)
    follow(board, partial(conversion.convert, settings), recipe.train, **show)
    if talks:
        console.say("")
        last = run_path(settings.out, trained.name, settings.stages[-1], trained.seed)
        console.say(f"use the converted model:  {use_command(recipe, str(last))}")


def _convert_pretrained(
    name: str, attention: str, words: list[str], show: dict[str, bool], how: dict[str, Any]
) -> None:
    """A Hugging Face model; see `convert`."""
    from attnkit.cli.training_display import contexts_command, follow
    from attnkit.experiment import pretrained_conversion
    from attnkit.experiment.pretrained_conversion import PretrainedSettings
    from attnkit.recipe.schema import TrainConfig
    from attnkit.show.training_board import Board, BoardRun

    if how["text"] is None:
        kind = UsageError if Path(name).exists() else MissingInputError
        raise kind(f"{name}: no run is here; a Hugging Face model needs --text FILE to learn from")
    config = pretrained_conversion.attention_of(attention)
    settings = PretrainedSettings(model=name, attention=config, **_training(words), **how)
    lines = tuple(BoardRun(stage, pretrained_conversion.SEED) for stage in settings.stages)
    follow(
        Board(settings.name, lines, busy=load_note),
        partial(pretrained_conversion.convert, settings),
        TrainConfig(batch_tokens=settings.batch_tokens),
        **show,
    )
    if not any(show.values()):
        console.say(f"use the converted model:  {contexts_command(str(settings.folder))}")


def _training(words: list[str]) -> dict[str, Any]:
    """`lr`, `batch_tokens` and `precision` for a Hugging Face model."""
    chosen: dict[str, Any] = {"lr": 1e-4, "batch_tokens": 2048, "precision": "fp32"}
    kinds = {"lr": "a number above 0", "batch_tokens": "a whole number above 0",
             "precision": "fp32 or bf16"}  # fmt: skip
    for word in words:
        section, _, name = word.partition("=")[0].rpartition(".")
        if section != "train" or name not in chosen:
            known = ", ".join(f"train.{name}" for name in chosen)
            raise UsageError(f"{word}: of a Hugging Face model these can be set: {known}")
        text = word.partition("=")[2]
        try:
            given: Any = type(chosen[name])(text)
            if not (text in ("fp32", "bf16") if name == "precision" else 0 < given < math.inf):
                raise ValueError
        except ValueError:
            raise UsageError(f"{word}: must be {kinds[name]}") from None
        chosen[name] = given
    return chosen
