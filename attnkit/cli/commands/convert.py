"""`attnkit convert`: replacement of the attention mechanism of a trained model."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import console, options
from attnkit.cli.options import argument, check_options, flag, value
from attnkit.device import load_note
from attnkit.errors import MissingInputError, UsageError
from attnkit.runs import is_run, run_path

if TYPE_CHECKING:
    from attnkit.recipe.schema import TrainConfig


def convert(
    model: Path = argument(
        "MODEL", "Folder of a finished run (seed-N), or a causal Hugging Face model: folder or hub name."
    ),
    overrides: list[str] | None = argument(
        "KEY=VALUE",
        "Override recipe keys of the fine-tuning, search or scoring, as in train.lr=1e-4; "
        "of a Hugging Face model train.lr, train.batch_tokens and train.precision.",
        default=None,
    ),
    *,
    attention: str = value(
        "WORD",
        "The new mechanism, as model.attention in a recipe: linear, {encoder: nystrom}, "
        "{name: performer, features: 128}. Places that are not named stay as they are.",
        default=...,
    ),
    transfer: int = value(
        "N", "Updates of attention transfer: each new layer learns the old one's output.", default=200, min=0
    ),
    tune: int = value("N", "Updates of fine-tuning of the whole model after that.", default=500, min=0),
    text: Path | None = value("FILE", "For a Hugging Face model: plain text to learn from, without labels."),
    test: Path | None = value("FILE", "Plain text to compute the perplexity on. [default: the last tenth of --text]"),
    length: int | None = value("N", "Length of the windows of text in tokens. [default: 256]", min=2),
    out: options.Out = Path("runs"),
    fresh: bool = flag("--fresh", "Start over, replacing converted runs."),
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    as_json: bool = flag("--json", "Print events as JSON, one object per line."),
    quiet: bool = flag("--quiet", "Print only the final table.", "-q"),
) -> None:
    """Replace the attention mechanism of a trained model, and measure the cost.

    Weights with matching names and shapes are kept, a Random Synthesizer starts from averaged maps,
    and other new weights are initialized. Then the new layers learn, on the training text, to
    reproduce the outputs of the old ones (attention transfer), and the whole model is fine-tuned.
    Each stage becomes a run, and the table compares them with the original run. Repeat the command
    to continue one that was stopped.

    A causal Hugging Face model gets the mechanism in all layers, with the queries, keys and values
    of the model. The table shows the perplexity of plain text, and only the last stage is kept, in
    one folder. A command that was stopped starts over; --fresh replaces the folder.

      attnkit convert RUN --attention linear
      attnkit convert RUN --attention '{encoder: nystrom}' --tune 1000 train.lr=5e-4
      attnkit convert RUN --attention '{encoder: local, decoder: local}'
      attnkit convert OWNER/MODEL --attention linear --text corpus.txt
    """
    shared: Any = {"transfer": transfer, "tune": tune, "out": out}
    shared |= {"fresh": fresh, "device": device, "offline": offline}
    corpus: Any = {"text": text, "test": test, "length": length}
    is_pretrained = (model / "config.json").is_file() or not model.exists()  # a folder, or a name of the hub
    if not is_run(str(model)) and (text is not None or is_pretrained):
        plan = _plan_pretrained(str(model), attention, overrides or [], {**shared, **corpus})
    elif any(option is not None for option in corpus.values()):
        raise UsageError("--text, --test and --length are for Hugging Face models; a run uses its own corpus")
    else:
        plan = _plan_run(model, attention, overrides or [], {**shared, "data_dir": data_dir})
    if verbose := not (as_json or quiet):
        console.say(f"{model}: the converted model goes to {plan.folder}")
    from attnkit.cli.training_display import follow
    from attnkit.show.training_board import Board, BoardRun

    runs = tuple(BoardRun(stage, plan.seed) for stage in plan.settings.stages)
    board = Board(plan.settings.name, runs, busy=load_note)
    follow(board, partial(plan.convert, plan.settings), plan.train, as_json=as_json, quiet=quiet)
    if verbose:
        console.say("")
        console.say(f"use the converted model:  {plan.use}")


class PlannedConversion(NamedTuple):
    """A conversion and the facts that the command prints."""

    settings: Any
    convert: Callable[..., object]
    train: "TrainConfig"
    seed: int
    folder: Path
    """Folder of the converted runs or of the converted model."""
    use: str
    """Shell command that uses the last stage."""


def _plan_run(run: Path, attention: str, overrides: list[str], options: dict[str, Any]) -> PlannedConversion:
    """Plan the conversion of a run."""
    from attnkit.cli.training_display import use_command
    from attnkit.experiment import conversion
    from attnkit.runs import Run

    trained = Run.open(run)
    trained.require_weights()
    recipe = conversion.converted_recipe(trained, attention, options["tune"], overrides, check_options)
    settings = conversion.ConversionSettings(run=trained, recipe=recipe, **options)
    use = use_command(recipe, str(run_path(settings.out, settings.name, settings.stages[-1], trained.seed)))
    folder = settings.out / settings.name
    return PlannedConversion(settings, conversion.convert, recipe.train, trained.seed, folder, use)


def _plan_pretrained(name: str, attention: str, overrides: list[str], options: dict[str, Any]) -> PlannedConversion:
    """Plan the conversion of a Hugging Face model."""
    from attnkit.cli.training_display import contexts_command
    from attnkit.experiment import pretrained_conversion as conversion

    if options["text"] is None:
        error_class = UsageError if Path(name).exists() else MissingInputError
        raise error_class(f"{name}: no run found; a Hugging Face model needs --text FILE to learn from")
    recipe = conversion.recipe_of(attention, overrides)
    options["length"] = options["length"] or 256
    settings = conversion.PretrainedSettings(model=name, recipe=recipe, **options)
    use, seed = contexts_command(str(settings.folder)), conversion.SEED
    return PlannedConversion(settings, conversion.convert, recipe.train, seed, settings.folder, use)
