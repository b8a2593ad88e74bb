"""`attnkit doctor`: installed and missing packages, device, data and folders."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attnkit
from attnkit.cli import console, options, output
from attnkit.errors import AttnkitError

EXTRAS = {
    "ctranslate2": "ctranslate2",
    "datasets": "datasets",
    "hf": "transformers",
    "ja": "mecab-python3",
    "ko": "mecab-ko",
    "onnx": "onnxruntime",
    "parquet": "pyarrow",
    "plot": "matplotlib",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
}
"""Package that each extra installs."""
LIBRARIES = ("torch", "numpy", "sentencepiece", "sacrebleu", "rouge-score")


def doctor(
    *,
    format: options.Format = "table",
    out: options.Out = Path("runs"),
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Show the versions, device, data and extras that attnkit finds.

    For a missing package it shows the command that installs it.

      attnkit doctor
      attnkit doctor --data-dir corpora --format markdown
    """
    from attnkit.show.table import Table
    from attnkit.storage.cache import cache_dir

    if data_dir is None and (named := os.environ.get("ATTNKIT_DATA")):
        data_dir = Path(named)
    kind = "terminal" if console.is_terminal(sys.stdout) else "no terminal (pipe or file)"
    color = "color" if console.has_color(sys.stdout) else "no color"
    shell = Path(os.environ.get("SHELL", "")).name or "bash"
    rows = [
        ("attnkit", f"{attnkit.__version__}, {Path(attnkit.__file__).parent}"),
        ("Python", f"{platform.python_version()}, {sys.executable}"),
        *((name, _version(name, "attnkit")) for name in LIBRARIES),
        *_processor(device),
        ("data (--data-dir)", _data(data_dir)),
        ("runs (--out)", _folder_state(out)),
        ("cache", _folder_state(cache_dir())),
        *(
            (f"attnkit[{extra}]", _version(package, f"'attnkit[{extra}]'", f"{package} "))
            for extra, package in EXTRAS.items()
        ),
        ("output", f"{kind}, {shutil.get_terminal_size().columns} columns, {color}"),
        ("completion", f'eval "$({console.COMPLETE}=source_{shell} {console.PROGRAM})"'),
    ]
    output.write_tables([Table.of_texts("", ("what", "found"), rows)], format)


def _version(package: str, install: str, prefix: str = "") -> str:
    try:
        return prefix + version(package)
    except PackageNotFoundError:
        return f"missing: pip install {install}"


def _processor(device: str) -> list[tuple[str, str]]:
    """Return the rows about the system, the device, the number of threads and the load."""
    import torch

    from attnkit.device import THREADS, load_warning, pick_device

    try:
        device = f"{device}: {pick_device(device)}" if device == "auto" else pick_device(device)
    except AttnkitError as error:
        device = str(error)
    set_by = next((f" ({name}={os.environ[name]})" for name in THREADS if name in os.environ), "")
    return [
        ("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
        ("device", device),
        ("threads", f"{torch.get_num_threads()}{set_by}"),
        ("load", load_warning() or "quiet"),
    ]


def _data(folder: Path | None) -> str:
    """Return a text about the corpora that are complete or incomplete in a folder."""
    from attnkit.recipe import corpus_cards

    if folder is None:
        return "no folder: set ATTNKIT_DATA or --data-dir"
    if not os.path.isdir(folder):
        return f"{folder}: no such folder"
    complete, partial = list[str](), list[str]()
    for card in map(corpus_cards.load, corpus_cards.names()):
        exist = [os.path.exists(folder / card.name / file.path) for file in card.files()]
        if any(exist):
            (complete if all(exist) else partial).append(card.name)
    text = f"{folder}: {', '.join(complete) or 'no known corpus'}"
    return f"{text}; incomplete: {', '.join(partial)}" if partial else text


def _folder_state(folder: Path) -> str:
    """Return a text about whether a folder is writable and the free space on its disk."""
    absolute = folder.absolute()
    existing = next(path for path in (absolute, *absolute.parents) if os.path.exists(path))
    free = shutil.disk_usage(existing).free
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    state = "writable" if writable else f"NOT writable ({existing})"
    missing = "" if existing == absolute else ", will be created"
    return f"{folder}: {state}{missing}, {free / 1e9:,.0f} GB free"
