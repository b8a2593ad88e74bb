"""`attnkit plot`: learning curves of runs, and their scores against what they cost."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from attnkit.cli import completion, console, options, output
from attnkit.cli.options import choice, value

AXES = ("updates", "tokens", "time", "parameters", "length")


def plot(
    folders: Annotated[
        list[Path],
        Argument(
            metavar="RUNS",
            help="Folders of one or more runs, finished or not.",
            autocompletion=completion.folders,
        ),
    ],
    *,
    y: Annotated[
        str | None,
        value(
            "NAME,...",
            "training-loss, validation-loss, validation-metric (train.monitor), learning-rate, "
            "gradient-norm, tokens-per-second; score (first metric of the evaluation), or a metric "
            "by its name. [default: training-loss and what is validated]",
            autocompletion=completion.curves,
        ),
    ] = None,
    x: Annotated[
        str | None,
        choice(
            "--x",
            AXES,
            "updates, tokens (target tokens so far) or time (of training); for scores also "
            "parameters or length (eval.lengths). [default: updates; for scores time]",
            "AXIS",
        ),
    ] = None,
    save: Annotated[
        Path | None, value("FILE", "Write a picture instead: .svg, .png or .pdf (matplotlib).")
    ] = None,
    plugins: options.Plugins = None,
) -> None:
    """Plot learning curves of runs, or their scores against time and parameters.

    Runs that differ only in their seed share one colour. A letter marks the end of each line, and
    each score.

      attnkit plot runs/quickstart
      attnkit plot runs/quickstart --y learning-rate,gradient-norm --x tokens
      attnkit plot runs/quickstart --y bleu --x parameters --save bleu.svg
    """
    from attnkit.runs import find_runs
    from attnkit.runs.curves import plots

    if save is not None:
        output.check_save(save, output.PICTURES)
    names = [name.strip() for name in y.split(",")] if y is not None else []
    drawn = plots(find_runs(folders, unfinished=True), names, x, note=console.warn)
    if save is None:
        from attnkit.show.curves_chart import CurvesChart

        console.stdout().print(CurvesChart(drawn))
        return
    from attnkit.show.curves_figure import picture

    output.save_picture(save, picture(drawn, save.suffix[1:].lower()))
