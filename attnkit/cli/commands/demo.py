"""`attnkit demo`: a translation by the shipped model, and its attention."""

import shlex
from dataclasses import replace
from pathlib import Path

from attnkit.cli import console, options, output
from attnkit.cli.options import argument, value
from attnkit.errors import OutputPathError

SENTENCE = "The poor woman stole the letters."
MAPS, COMPARISON = "maps.html", "comparison.html"


def demo(
    text: str = argument("TEXT", "An English sentence like those of the quickstart recipe.", default=SENTENCE),
    *,
    out: Path = value("DIR", "Folder for the pages.", default=Path("attnkit-demo")),
    threads: options.Threads = None,
) -> None:
    """Translate a sentence with a small trained model and write two pages of its attention.

    The model is the quickstart's best row, random+vanilla: its self-attention adds a learned matrix
    that does not depend on the text to scaled dot products. The second page compares its maps with
    those of plain softmax attention on the same queries and keys. All commands that take a run
    accept the name `demo`.

      attnkit demo
      attnkit demo "The tired kings will paint boats."
    """
    from attnkit.analysis.capture import capture
    from attnkit.runs import Run
    from attnkit.runs.demo import DEMO
    from attnkit.show.map_page import page
    from attnkit.storage.files import make_folder

    if out.exists() and not out.is_dir():
        raise OutputPathError(f"--out {out}: is a file; name a folder")
    captured = capture(Run.open(DEMO), text, reference=True)
    reference, captured = captured.reference, replace(captured, reference=None)
    assert reference is not None
    make_folder(out)
    console.write(f"{captured.output}\n")
    command = shlex.join(["attnkit", "visualize-attn", DEMO, text])
    output.save(out / MAPS, page([captured], command=command), ": what each head attends to")
    comparison = page([captured, reference], command=f"{command} --reference", kind="encoder")
    output.save(out / COMPARISON, comparison, ": beside plain softmax attention")
    if note := captured.facts.get("note"):
        console.warn(note)
    console.say(
        f"""
open the pages in a browser, then try:
  attnkit visualize-attn demo {shlex.quote(text)}
  echo "The tired kings will paint boats." | attnkit generate demo
  attnkit train quickstart              five mechanisms trained and compared, in minutes
  attnkit recipe list                   other tasks and data; `attnkit --help` for the rest
in Python: import attnkit; attnkit.load("demo").attention({text!r})"""
    )
