"""Which keys of a data section do not go together; recipes and corpora are checked by these rules.

No data is read: a corpus is known by its card, files by their names.
"""

from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from attnkit.errors import RecipeError
from attnkit.recipe import corpus_cards
from attnkit.recipe.schema import DataConfig, Recipe
from attnkit.text import nearest, quoted

SPLITS = ("train", "valid", "test")
NO_SIZE = "only generated corpora have a size; use data.rows to keep fewer rows"


class Fault(NamedTuple):
    """Two or more keys that do not go together; the first that was set is blamed."""

    keys: tuple[str, ...]
    text: str


def data_faults(data: DataConfig, task: str) -> Iterator[Fault]:
    """What is wrong with a data section of a recipe of this task."""
    named = [split for split in SPLITS if getattr(data, split) is not None]
    if data.corpus is not None:
        for split in named:
            text = f"{quoted(data.corpus)} has its own splits; to read files, set data.corpus=null"
            yield Fault((f"data.{split}",), text)
        yield from _corpus(data, data.corpus, task)
    else:
        if not named:
            text = "needs a corpus (`attnkit recipe list --corpora`), or train and valid paths"
            yield Fault(("data",), text)
        elif data.size is not None:
            yield Fault(("data.size",), NO_SIZE)
        for split in named:
            yield from _files(f"data.{split}", files_of(data, split), data.format, task)
    yield from _labels(data, task)
    if data.source is not None and task == "language-modeling":
        text = "a language model has no source; name data.target alone"
        yield Fault(("data.source",), text)
    elif data.source is not None and data.source == data.target and task == "translation":
        text = f"source and target are both {data.source}; name two"
        yield Fault(("data.target", "data.source"), text)


def _labels(data: DataConfig, task: str) -> Iterator[Fault]:
    given, text = data.labels, ""
    known = data.corpus in corpus_cards.names() and corpus_cards.load(str(data.corpus)).labels
    if task != "classification":
        text = f"does nothing with `task: {task}`; it is for classification" if given else ""
    elif known and given != known:
        text = f"{data.corpus} has {', '.join(known)}; remove data.labels"
    elif not known and not given and data.corpus is None:
        text = "is missing: name the labels, such as `labels: [negative, positive]`"
    elif given and len(given) < 2:
        text = "needs two labels or more"
    elif len({" ".join(label.split()) for label in given}) < len(given) or not all(
        label.strip() == label != "" for label in given
    ):
        text = "each label must be another text, without white space at its ends"
    if text:
        yield Fault(("data.labels",), text)


def files_of(data: DataConfig, split: str) -> tuple[str, ...]:
    """The files that a data section names for a split."""
    value = getattr(data, split)
    return (value,) if isinstance(value, str) else tuple(value or ())


def split_notes(recipe: Recipe) -> list[str]:
    """What a user should know of the splits that are scored."""
    data = recipe.data
    if data.train is None or data.test is not None or recipe.eval.splits != ("valid",):
        return []
    return ["there is no data.test: the validation split is scored"]


def format_of(files: tuple[str, ...], form: str) -> str:
    """The format of the files of a split: `data.format`, or what auto makes of their names."""
    if form != "auto" or not files:
        return form
    json = files[0].removesuffix(".gz").removesuffix(".xz").endswith((".jsonl", ".ndjson", ".json"))
    return "lines" if len(files) == 2 else "jsonl" if json else "plain"


def _corpus(data: DataConfig, name: str, task: str) -> Iterator[Fault]:
    try:
        card = corpus_cards.load(name)
    except RecipeError as error:
        yield Fault(("data.corpus",), str(error))
        return
    if task not in (card.task, "language-modeling"):
        yield Fault(("task", "data.corpus"), f"{card.name} is for {card.task}, not for {task}")
    if data.size is not None and card.format != "generated":
        yield Fault(("data.size",), NO_SIZE)
    if data.format != "auto":
        yield Fault(("data.format",), "is for files of your own; a corpus knows its format")
    known = ", ".join(card.languages)
    silent = card.format == "generated" and data.source is data.target is None
    wanted = () if silent else ("target",) if task == "language-modeling" else ("source", "target")
    for key in ("source", "target"):
        word = getattr(data, key)
        if word is not None and word not in card.languages:
            close = nearest(word, card.languages)
            hint = f"; did you mean {close}?" if close else ""
            yield Fault((f"data.{key}",), f"{card.name} has {known}, got {quoted(word)}{hint}")
        elif word is None and card.task == "translation" and key in wanted:
            text = f"{card.name} has {known}; say which is the {key} by data.{key}"
            yield Fault((f"data.{key}", "data.corpus"), text)


def _files(key: str, files: tuple[str, ...], form: str, task: str) -> Iterator[Fault]:
    kind, text = format_of(files, form), ""
    if any("\0" in name or not name for name in files):
        text = "a path must be the name of a file"
    elif not 1 <= len(files) <= 2:
        text = f"must be one file, or two aligned files, got {len(files)}"
    elif task == "language-modeling" and len(files) == 2:
        text = "language-modeling reads one file, got two aligned files"
    elif form == "lines" and len(files) == 1:
        text = "`data.format: lines` reads two aligned files [source, target]; name both"
    elif form in ("jsonl", "plain") and len(files) == 2:
        text = f"`data.format: {form}` reads one file, got two"
    elif task == "question-answering" and kind != "jsonl":
        text = "questions with contexts are read from one .jsonl file; name one"
    elif task != "language-modeling" and kind == "plain":
        text = f"{task} needs pairs: two aligned files [source, target], or one .jsonl file"
        name = PurePath(files[0])
        if name.suffix == ".tsv":
            text += "; to cut a tab-separated file in two: "
            text += f"cut -f1 {name.name} > {name.stem}.src; cut -f2 {name.name} > {name.stem}.tgt"
    if text:
        yield Fault((key,), text)
