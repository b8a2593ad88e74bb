"""`attnkit data`: encoding of the corpus of a recipe before training."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnkit.cli import console, options
from attnkit.cli.options import Overrides, RecipeName, Variants, check_options

if TYPE_CHECKING:
    from attnkit.cli.training_display import Notice
    from attnkit.train.events import Emit

app = typer.Typer(help="Encode the corpus of a recipe before training.")


@app.callback()
def data() -> None:
    """Keep `encode` a subcommand; without a callback, Typer merges an only subcommand with its group."""


@app.command("encode")
def encode(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    variant: Variants = None,
    out: options.Out = Path("runs"),
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Train the tokenizer of a recipe and encode its corpus in advance for `train`.

    A long corpus is encoded by one process per thread (--threads). Memory does not grow with the
    corpus. --out is for recipes that start from the weights of a run (train.init). Prints the
    folder of the encoded corpora.

      attnkit data encode translation/multi30k --data-dir corpora
      attnkit data encode my.yaml --threads 8
    """
    from attnkit.cli.training_display import follow
    from attnkit.experiment.settings import TrainingSettings
    from attnkit.recipe import load
    from attnkit.show.training_board import Board
    from attnkit.storage.cache import cache_dir

    file = load(recipe, overrides or [], option_check=check_options)
    names = file.chosen(variant)
    settings = TrainingSettings(file=file, out=out, variants=names, data_dir=data_dir, offline=offline)

    def start(emit: "Emit", notice: "Notice") -> None:
        from attnkit.experiment.training import prepare_data

        prepare_data(settings, emit, notice=notice)

    spec = file.variants[names[0]].train
    follow(Board(file.name, ()), start, spec, as_json=False, quiet=False)
    console.write(f"{cache_dir() / 'encoded'}\n")
