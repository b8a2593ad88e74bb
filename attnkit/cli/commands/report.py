"""`attnkit report`: a report of runs as a web page, Markdown with drawings, or a picture."""

from contextlib import suppress
from pathlib import Path

from attnkit.cli import console, options
from attnkit.cli import output as files
from attnkit.cli.options import argument, value

PAGES, MARKDOWN = (".html", ".htm"), ".md"


def report(
    folders: list[str] = argument("RUNS", "Folders of one or more scored runs."),
    *,
    output: Path = value(
        "FILE",
        "A page (.html), Markdown (.md) with its drawings in a folder beside it, or a picture "
        "(.svg, .png, .pdf) of systems by tasks.",
        "--output",
        "-o",
        default=Path("report.html"),
    ),
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
) -> None:
    """Write a report of scored runs: one page, or Markdown for the appendix of a paper.

    It contains the table of `attnkit eval`, learning curves, examples of the largest gains and
    losses, how the recipes differ, versions, machines and hashes. The page is one file that needs
    no network. A picture shows the differences from the baseline, systems by tasks; the runs may be
    of several tasks.

      attnkit report runs/quickstart
      attnkit report runs/quickstart -o appendix.md
      attnkit report runs -o overview.svg
    """
    files.check_save(output, (*PAGES, MARKDOWN, *files.PICTURES), "--output")
    from attnkit.runs import find_runs
    from attnkit.runs.find import baselines

    runs = find_runs(folders, note=console.warn)
    if output.suffix.lower() in files.PICTURES:
        from attnkit.scoring.overview import overview
        from attnkit.show.overview import overview_picture

        view = overview(runs, baselines(runs))
        files.save_picture(output, overview_picture(view, output.suffix[1:].lower()))
        return
    from attnkit.scoring.results import PublishedFigures
    from attnkit.show.report import markdown, page, report_of
    from attnkit.storage.files import make_folder, write_output

    figures, command = PublishedFigures.of_runs(runs), console.command_line()
    content = report_of(runs, baselines(runs), figures, command, console.warn, data_dir=data_dir, offline=offline)
    if output.suffix.lower() in PAGES:
        html = page(content)
        files.save(output, html, f" ({len(html) / 1e6:.1f} MB)")
        return
    folder = output.with_name(f"{output.stem}-figures")
    text, drawings = markdown(content, folder.name)
    make_folder(folder)
    try:
        for name, drawing in drawings.items():
            write_output(folder / name, drawing)
        files.save(output, text, f" and its drawings in {folder}")
    except BaseException:
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
        raise
