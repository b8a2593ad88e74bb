"""Arguments and options that several commands have, with one wording each."""

from pathlib import Path
from typing import Annotated

import typer

from attnkit.cli import completion

RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a finished run (its seed-N folder).")
]
Variants = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Only this variant; may be repeated.",
        autocompletion=completion.variants,
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Root of the run folders.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, mps.")]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of corpora. [default: $ATTNKIT_DATA]"),
]
Offline = Annotated[bool, typer.Option("--offline", help="Never download.")]
OfflineModel = Annotated[
    bool, typer.Option("--offline", help="Never download a Hugging Face model.")
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Use the chat template of a Hugging Face model.")
]
Template = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        help="How a Hugging Face model reads them. [default: {context}\\n\\n{prompt}]",
    ),
]
ModelType = Annotated[
    str, typer.Option(metavar="TYPE", help="float32, bfloat16, float16 or auto (Hugging Face).")
]
Format = Annotated[str, typer.Option(metavar="FORMAT", help="table, markdown, latex, csv or json.")]

Beam = Annotated[
    int | None, typer.Option(metavar="K", help="Beam search with K hypotheses; 1 is greedy.")
]
TopP = Annotated[
    float | None, typer.Option(metavar="P", help="Sample from the likeliest tokens of mass P.")
]
Temperature = Annotated[
    float | None, typer.Option(metavar="T", help="Sample bolder above 1, safer below.")
]
MaxLength = Annotated[int | None, typer.Option(metavar="N", help="Longest output in tokens.")]
