"""`attnkit plot`: learning curves of runs, and their scores against time, parameters and other values."""

from pathlib import Path

from attnkit.cli import console, output
from attnkit.cli.options import argument, value
from attnkit.errors import UsageError
from attnkit.text import quoted


def plot(
    folders: list[Path] = argument("RUNS", "Folders of one or more runs, finished or not."),
    *,
    y: str | None = value(
        "NAME,...",
        "training-loss, validation-loss, validation-metric (train.monitor), learning-rate, "
        "gradient-norm, tokens-per-second; score (first metric of the evaluation), or a metric "
        "by its name; overview (differences to the baseline, systems by tasks) or differences "
        "(with their intervals), of runs of any tasks. [default: training-loss and what is "
        "validated]",
    ),
    x: str | None = value(
        "AXIS",
        "updates, tokens (target tokens so far) or time (of training); for scores also "
        "parameters, state (bytes that a decoder keeps of its text) or length (eval.lengths). "
        "A key that was tuned or swept, such as train.lr, for validation scores. "
        "[default: updates; for scores time]",
    ),
    save: Path | None = value("FILE", "Write a picture instead: .svg, .png or .pdf (matplotlib)."),
    size: str | None = value("WxH", "Width and height of the picture in inches, such as 3.3x2.4."),
    font_size: float = value("PT", "Size of its text in points.", "--font-size", default=10.0, min=1),
) -> None:
    """Plot learning curves of runs, or their scores against time, parameters and tuned values.

    Runs that differ only in their seed share one color. A letter marks the end of each line, and
    each score.

      attnkit plot runs/quickstart
      attnkit plot runs/quickstart --y learning-rate,gradient-norm --x tokens
      attnkit plot runs/quickstart --y bleu --x parameters --save bleu.svg
      attnkit plot runs/quickstart --x train.lr
      attnkit plot runs --y overview --save overview.svg
    """
    from attnkit.runs import find_runs
    from attnkit.runs.curves import VIEWS, learning_curves

    if save is not None:
        output.check_save(save, output.PICTURES)
    names = [name.strip() for name in y.split(",")] if y is not None else []
    if {*names} & {*VIEWS}:
        if len(names) > 1 or x is not None:
            raise UsageError(f"--y {y}: {' or '.join(VIEWS)} must be the only --y, without --x")
        _plot_view(names[0], folders, save)
        return
    x_is_key = x is not None and "." in x
    runs = find_runs(folders, unfinished=True, trials=x_is_key, note=console.warn)
    curves = learning_curves(runs, names, x, note=console.warn)
    if save is None:
        from attnkit.show.curves_chart import CurvesChart

        console.stdout().print(CurvesChart(curves))
        return
    from attnkit.show.curves_figure import picture

    inches = None
    if size is not None:
        try:
            width, height = map(float, size.lower().split("x"))
        except ValueError:
            width = height = 0.0
        if not (0.5 <= width <= 100 and 0.5 <= height <= 100):
            raise UsageError(f"--size {quoted(size)}: must be width and height in inches, such as 3.3x2.4")
        inches = width, height
    output.save_picture(save, picture(curves, save.suffix[1:].lower(), size=inches, font=font_size))


def _plot_view(name: str, folders: list[Path], save: Path | None) -> None:
    """Plot an overview of systems by tasks, or the differences from the baseline with intervals."""
    from attnkit.runs import find_runs
    from attnkit.runs.find import baselines
    from attnkit.scoring.overview import overview
    from attnkit.show import overview as show

    runs = find_runs(folders, note=console.warn)
    view, is_overview = overview(runs, baselines(runs)), name == "overview"
    if save is None:
        table = (show.overview_table if is_overview else show.forest_table)(view)
        output.write_tables([table], "table")
    else:
        picture = (show.overview_picture if is_overview else show.forest_picture)(view, save.suffix[1:].lower())
        output.save_picture(save, picture)
