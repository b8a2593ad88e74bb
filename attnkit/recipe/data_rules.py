"""Which keys of a data section do not go together; recipes and corpora are checked by these rules.

No data is read: a corpus is known by its card, files by their names.
"""

from collections.abc import Iterator
from pathlib import PurePath

from attnkit.errors import RecipeError
from attnkit.recipe import corpus_cards
from attnkit.recipe.issues import Issue
from attnkit.recipe.schema import DataConfig, Recipe
from attnkit.text import nearest, quoted

SPLITS = ("train", "valid", "test")
HUGGING_FACE = "hf:"
"""Begins the name of a data set of Hugging Face: hf:OWNER/NAME or hf:OWNER/NAME:CONFIG."""
_FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv",
    ".parquet": "parquet",
}  # fmt: skip
NO_SIZE = "only generated corpora have a size; use data.rows to keep fewer rows"


def data_issues(data: DataConfig, task: str) -> Iterator[Issue]:
    """What is wrong with a data section of a recipe of this task."""
    named = [split for split in SPLITS if getattr(data, split) is not None]
    yield from _split_issues(data, task, named)
    if data.corpus is not None:
        for split in named:
            text = f"{quoted(data.corpus)} has its own splits; to read files, set data.corpus=null"
            yield text, f"data.{split}"
        yield from _corpus(data, data.corpus, task)
    else:
        if not named:
            text = "needs a corpus (`attnkit recipe list --corpora`), or train and valid paths"
            yield text, "data"
        elif data.size is not None:
            yield NO_SIZE, "data.size"
        for split in named:
            if text := _files_refused(files_of(data, split), data.format, task):
                yield text, f"data.{split}"
    if text := _labels_refused(data, task):
        yield text, "data.labels"
    if data.source is not None and task == "language-modeling":
        yield "a language model has no source; name data.target alone", "data.source"
    elif data.source is not None and data.source == data.target and task == "translation":
        text = f"source and target are both {data.source}; name two"
        yield text, "data.target", "data.source"


def _split_issues(data: DataConfig, task: str, named: list[str]) -> Iterator[Issue]:
    """What is wrong with `data.split`."""
    wanted, form = [split for split in SPLITS[1:] if data.split_off(split)], data.format
    for split in wanted:
        key = f"data.split.{split}"
        if data.corpus is not None:
            yield f"{quoted(data.corpus)} has its own splits", key
        elif split in named:
            yield f"data.{split} names a file; remove one of both", key
        elif "train" not in named:
            yield "splits data.train, which is not set", key
        elif task == "language-modeling" and format_of(files_of(data, "train"), form) == "plain":
            text = "a text cannot be split by lines; cut it: head -n 1000 FILE > valid.txt"
            yield text, key


def _corpus(data: DataConfig, name: str, task: str) -> Iterator[Issue]:
    try:
        card = corpus_cards.load(name)
    except RecipeError as error:
        yield str(error), "data.corpus"
        return
    if task not in (card.task, "language-modeling"):
        text = f"{card.name} is for {card.task}, not for {task}"
        yield text, "task", "data.corpus"
    if data.size is not None and card.format != "generated":
        yield NO_SIZE, "data.size"
    if data.format != "auto":
        text = "is for files of your own; a corpus knows its format"
        yield text, "data.format"
    known = ", ".join(card.languages)
    silent = card.format == "generated" and data.source is data.target is None
    wanted = () if silent else ("target",) if task == "language-modeling" else ("source", "target")
    for key in ("source", "target"):
        word = getattr(data, key)
        if word is not None and word not in card.languages:
            close = nearest(word, card.languages)
            hint = f"; did you mean {close}?" if close else ""
            text = f"{card.name} has {known}, got {quoted(word)}{hint}"
            yield text, f"data.{key}"
        elif word is None and card.task == "translation" and key in wanted:
            text = f"{card.name} has {known}; say which is the {key} by data.{key}"
            yield text, f"data.{key}", "data.corpus"


def _files_refused(files: tuple[str, ...], form: str, task: str) -> str:
    """Why these files cannot be those of a split; "" where they can."""
    if not 1 <= len(files) <= 2:
        return f"must be one file, or two aligned files, got {len(files)}"
    if task == "language-modeling" and len(files) == 2:
        return "language-modeling reads one file, got two aligned files"
    if form == "lines" and len(files) == 1:
        return "`data.format: lines` reads two aligned files [source, target]; name both"
    if form not in ("auto", "lines") and len(files) == 2:
        return f"`data.format: {form}` reads one file, got two"
    kind, name = format_of(files, form), PurePath(files[0])
    if task == "question-answering" and kind in ("lines", "plain"):
        return "questions with contexts are read from one .jsonl file; name one"
    if task == "language-modeling" or kind != "plain":
        return ""
    text = f"{task} needs pairs: two aligned files [source, target], {HUGGING_FACE}NAME, or one"
    stem = name.name.removesuffix(".gz").removesuffix(".xz")
    text += " .jsonl, .json, .csv, .tsv or .parquet file"
    return f"{text}; where {stem} has columns, say how they are separated: data.format=csv"


def _labels_refused(data: DataConfig, task: str) -> str:
    """Why these cannot be the labels; "" where they can."""
    given = data.labels
    known = data.corpus in corpus_cards.names() and corpus_cards.load(str(data.corpus)).labels
    if task != "classification":
        return f"does nothing with `task: {task}`; it is for classification" if given else ""
    if known:
        return "" if given == known else f"{data.corpus} has {', '.join(known)}; remove data.labels"
    if not given and data.corpus is None:
        return "is missing: name the labels, such as `labels: [negative, positive]`"
    if given and len(given) < 2:
        return "needs two labels or more"
    different = len({" ".join(label.split()) for label in given}) == len(given)
    if not different or not all(label.strip() == label != "" for label in given):
        return "each label must be another text, without white space at its ends"
    return ""


def files_of(data: DataConfig, split: str) -> tuple[str, ...]:
    """The files that a data section names for a split."""
    value = getattr(data, split)
    return (value,) if isinstance(value, str) else tuple(value or ())


def format_of(files: tuple[str, ...], form: str) -> str:
    """The format of the files of a split: `data.format`, or what auto makes of their names."""
    if form != "auto" or not files:
        return form
    if len(files) == 2:
        return "lines"
    if files[0].startswith(HUGGING_FACE):
        return "jsonl"  # which they are written as
    return _FORMATS.get(PurePath(files[0].removesuffix(".gz").removesuffix(".xz")).suffix, "plain")


def splits_at_hand(data: DataConfig) -> tuple[str, ...]:
    """The splits that files of one's own have, or that are taken from the training data."""
    return tuple(s for s in SPLITS if getattr(data, s) is not None or data.split_off(s))


def split_notes(recipe: Recipe) -> list[str]:
    """What a user should know of the splits that are scored."""
    data = recipe.data
    if data.train is None or "test" in splits_at_hand(data) or recipe.eval.splits != ("valid",):
        return []
    return ["there is no data.test: the validation split is scored"]
