"""`attnkit export`: export of a trained model to transformers, CTranslate2 or ONNX."""

from pathlib import Path
from typing import Literal

from attnkit.cli import console, options, output
from attnkit.cli.options import argument, value
from attnkit.errors import UsageError
from attnkit.recipe.export_rules import refusal


def export(
    run: options.RunFolder,
    folder: Path = argument("DIR", "New or empty folder to write."),
    *,
    to: Literal["huggingface", "ctranslate2", "onnx"] = value(
        "FORMAT", "huggingface, ctranslate2 or onnx.", default=...
    ),
    quantization: Literal["int8", "int16", "float16", "bfloat16"] | None = value(
        "TYPE", "Weights of ctranslate2: int8, int16, float16, bfloat16."
    ),
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    threads: options.Threads = None,
) -> None:
    """Export a trained model for use without attnkit, and check that its outputs are the same.

    huggingface gives a folder that transformers opens with its own classes (Pegasus, Marian or
    OPT), with its tokenizer; ctranslate2 a folder for that engine; onnx graphs of any mechanism
    that ONNX can express. `attnkit recipe explain` shows before training which formats a
    model can be exported to. The export is compared with the run on 200 lines; if outputs differ,
    no folder is left behind.

      attnkit export runs/translation/multi30k/vanilla/seed-1 --to huggingface multi30k-en-de
      attnkit export RUN --to ctranslate2 DIR --quantization int8
      attnkit export RUN --to onnx DIR
    """
    from attnkit.runs import Run

    trained = Run.open(run)
    if why := refusal(trained.recipe, to):
        raise UsageError(f"{run}: {why}")
    if quantization and to != "ctranslate2":
        raise UsageError(f"--quantization is for --to ctranslate2, not for {to}")
    from attnkit.export import exporting
    from attnkit.show.table import Table

    trained.require_finished()
    exporting.check(to, folder)
    console.say(f"{run}: exporting, then comparing answers")
    checks = exporting.export(trained, to, folder, quantization, data_dir, offline)
    rows = [check[:3] for check in checks]
    output.write_tables([Table.of_texts("", ("check", "found", "needed"), rows)], "table")
    console.say(f"wrote {folder}; README.md says how to use it")
