"""`attnkit convert`: another attention mechanism in a trained model, and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from attnkit.cli import completion, console, options
from attnkit.cli.options import RunFolder, check_options, flag, value
from attnkit.device import busy_note

if TYPE_CHECKING:
    from attnkit.cli.training_display import Happening, Notice


def convert(
    run: RunFolder,
    overrides: Annotated[
        list[str] | None,
        Argument(
            metavar="KEY=VALUE",
            help="Override recipe keys of the fine-tuning, search or scoring, as in train.lr=1e-4.",
            autocompletion=completion.keys,
        ),
    ] = None,
    *,
    attention: Annotated[
        str,
        value(
            "WORD",
            "The new mechanism, as model.attention in a recipe: linear, {encoder: nystrom}, "
            "{name: performer, features: 128}. Places that are not named stay as they are.",
        ),
    ],
    transfer: Annotated[
        int,
        value(
            "N", "Updates of attention transfer: each new layer learns the old one's output.", min=0
        ),
    ] = 200,
    tune: Annotated[
        int, value("N", "Updates of fine-tuning of the whole model after that.", min=0)
    ] = 500,
    out: options.Out = Path("runs"),
    fresh: Annotated[bool, flag("--fresh", "Start over, replacing converted runs.")] = False,
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    as_json: Annotated[bool, flag("--json", "Print events as JSON, one object per line.")] = False,
    quiet: Annotated[bool, flag("--quiet", "Print only the final table.", "-q")] = False,
    plugins: options.Plugins = None,
) -> None:
    """Replace the attention mechanism of a trained model, and measure what that costs.

    Weights that fit by name and shape are kept, a Random Synthesizer begins with averaged maps, and
    other new weights are initialised. Then the new layers learn, on the training text, to answer as
    the old ones (attention transfer), and the model is trained on for a while. Each stage is a run
    of its own, and the table compares them with the run as it was. The same command can be repeated
    at any time.

      attnkit convert RUN --attention linear
      attnkit convert RUN --attention '{encoder: nystrom}' --tune 1000 train.lr=5e-4
      attnkit convert RUN --attention '{encoder: local, decoder: local}'
    """
    from attnkit.cli.training_display import follow, use_command
    from attnkit.experiment.conversion import ConversionSettings, converted_recipe
    from attnkit.runs import Run
    from attnkit.show.training_board import Board, BoardRun

    trained = Run.open(run)
    recipe = converted_recipe(trained, attention, tune, overrides or [], check_options)
    settings = ConversionSettings(
        run=trained, recipe=recipe, transfer=transfer, tune=tune, out=out, fresh=fresh,
        device=device, data_dir=data_dir, offline=offline,
    )  # fmt: skip

    def start(notice: "Notice") -> "Happening":
        from attnkit.experiment import conversion

        return conversion.convert(settings, notice=notice)

    if not (as_json or quiet):
        console.say(f"{run}: converted runs go to {out / trained.name}")
    lines = tuple(BoardRun(variant, trained.seed) for variant in settings.stages)
    board = Board(trained.name, lines, busy=busy_note)
    follow(board, start, recipe.train, as_json=as_json, quiet=quiet)
    if not (as_json or quiet):
        console.say("")
        last = Run.find(out, trained.name, settings.stages[-1], trained.seed)
        console.say(f"use the converted model:  {use_command(recipe, str(last))}")
