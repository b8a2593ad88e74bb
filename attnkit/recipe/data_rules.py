"""Constraints between the keys of a data section, for recipes and for corpora.

No data is read: a corpus is represented by its card, files by their names.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from attnkit.errors import RecipeError
from attnkit.recipe import corpus_cards
from attnkit.recipe.issues import Issue
from attnkit.recipe.schema import DataConfig, Recipe
from attnkit.text import hint, quoted

SPLITS = ("train", "valid", "test")
HUGGING_FACE = "hf:"
"""Prefix of Hugging Face data sets: hf:OWNER/NAME or hf:OWNER/NAME:CONFIG."""
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
NO_SIZE = "only generated corpora have a size; use data.rows to keep fewer rows"


def data_issues(data: DataConfig, task: str) -> Iterator[Issue]:
    """Yield the issues of a data section in a recipe of this task."""
    named = [split for split in SPLITS if getattr(data, split) is not None]
    label_issue, source, target = _label_issue(data, task), data.source, data.target
    if label_issue:
        yield label_issue, "data.labels"
    if source is not None and task == "language-modeling":
        yield "a language model has no source; set data.target only", "data.source"
    if source is not None and source == target and task == "translation":
        yield f"source and target are both {source}; name two languages", "data.target", "data.source"
    if data.corpus is not None:
        message = f"{quoted(data.corpus)} has its own splits"
        yield from ((f"{message}; to read files, set data.corpus=null", f"data.{s}") for s in named)
        yield from ((f"{message}; remove data.split.{s}", f"data.split.{s}") for s in SPLITS[1:] if data.split_off(s))
        yield from _corpus(data, data.corpus, task)
        return
    text_file = task == "language-modeling" and format_of(files_of(data, "train"), data.format)
    for split in (split for split in SPLITS[1:] if data.split_off(split)):
        if split in named:
            yield f"data.{split} names a file; remove one of the two keys", f"data.split.{split}"
        if "train" not in named:
            yield "needs data.train, which is not set", f"data.split.{split}"
        if "train" in named and split not in named and text_file == "plain":
            text = "plain text has no rows to split; cut the file: head -n 1000 FILE > valid.txt"
            yield text, f"data.split.{split}"
    if not named:
        yield "needs a corpus (`attnkit recipe list --corpora`), or train and valid paths", "data"
    if named and data.size is not None:
        yield NO_SIZE, "data.size"
    file_issues = {split: _file_issue(files_of(data, split), data.format, task) for split in named}
    yield from ((text, f"data.{split}") for split, text in file_issues.items() if text)


def split_issues(data: DataConfig, scored: Sequence[str]) -> Iterator[Issue]:
    """Yield an issue for each split that training or scoring needs and that does not exist."""
    available = available_splits(data)
    for split in ("train", "valid"):
        if data.corpus is None and available and split not in available:
            text = f"needs data.{split} too; set data.{split} to a file"
            if split == "valid" and format_of(files_of(data, "train"), data.format) != "plain":
                text += ", or take rows of data.train: data.split.valid=500"
            yield text, f"data.{available[0]}"
    card = corpus_cards.load(str(data.corpus)) if data.corpus in corpus_cards.names() else None
    for split in scored:
        if card and split not in card.splits:
            text = f"{card.name} has no split {quoted(split)}; it has {', '.join(card.splits)}"
            yield text, "eval.splits"
        elif not card and {"train", "valid"} <= {*available} and split not in available:
            text = f"the data has no split {quoted(split)}; it has {', '.join(available)}"
            yield text, "eval.splits"


def _corpus(data: DataConfig, name: str, task: str) -> Iterator[Issue]:
    try:
        card = corpus_cards.load(name)
    except RecipeError as error:
        yield str(error), "data.corpus"
        return
    if task not in (card.task, "language-modeling"):
        yield f"{card.name} is for {card.task}, not for {task}", "task", "data.corpus"
    if data.size is not None and card.format != "generated":
        yield NO_SIZE, "data.size"
    if data.format != "auto":
        yield "is for your own files; a corpus has a fixed format; remove data.format", "data.format"
    optional = card.format == "generated" and data.source is data.target is None
    needed = card.task == "translation" and not optional
    for key in ("source", "target"):
        word = getattr(data, key)
        if word is not None and word not in card.languages:
            yield f"{card.name} has no {quoted(word)}; {hint(word, card.languages)}", f"data.{key}"
        elif word is None and needed and (key == "target" or task != "language-modeling"):
            text = f"{card.name} has {', '.join(card.languages)}; choose one as data.{key}"
            yield text, f"data.{key}", "data.corpus"


def _file_issue(files: tuple[str, ...], form: str, task: str) -> str:
    """Return why these files cannot form a split, or "" if they can."""
    if not 1 <= len(files) <= 2:
        return f"must be one file, or two aligned files, got {len(files)}"
    if len(files) == 2 and (task == "language-modeling" or form not in ("auto", "lines")):
        why = task if task == "language-modeling" else f"`data.format: {form}`"
        return f"{why} reads one file, got two aligned files"
    if form == "lines" and len(files) == 1:
        return "`data.format: lines` reads two aligned files [source, target]; name both"
    kind = format_of(files, form)
    if task == "question-answering" and kind in ("lines", "plain"):
        return "question-answering needs one .jsonl file of questions with contexts"
    if task == "language-modeling" or kind != "plain":
        return ""
    return (
        f"{task} needs pairs: two aligned files [source, target], {HUGGING_FACE}NAME, or one "
        ".jsonl, .json, .csv, .tsv or .parquet file; if a file with another suffix has columns, "
        "set its format: data.format=csv"
    )


def _label_issue(data: DataConfig, task: str) -> str:
    """Return why the labels are refused, or "" if they are valid."""
    labels = data.labels
    card_labels = data.corpus in corpus_cards.names() and corpus_cards.load(str(data.corpus)).labels
    if task != "classification":
        return f"has no effect with `task: {task}`; it is for classification" if labels else ""
    if card_labels:
        return (
            "" if labels == card_labels else f"{data.corpus} has labels {', '.join(card_labels)}; remove data.labels"
        )
    if len(labels) < 2 and (labels or data.corpus is None):
        return "name at least two labels, such as `labels: [negative, positive]`"
    distinct = len({" ".join(label.split()) for label in labels}) == len(labels)
    if not distinct or not all(label.strip() == label != "" for label in labels):
        return "labels must be different, non-empty, and without white space at their ends"
    return ""


def files_of(data: DataConfig, split: str) -> tuple[str, ...]:
    """Return the files that a data section names for a split."""
    value = getattr(data, split)
    return (value,) if isinstance(value, str) else tuple(value or ())


def format_of(files: tuple[str, ...], form: str) -> str:
    """Return the format of a split's files: `data.format` or, if that is auto, the one that their names indicate."""
    if form != "auto" or not files:
        return form
    if len(files) == 2:
        return "lines"
    if files[0].startswith(HUGGING_FACE):
        return "jsonl"  # the format in which data sets are stored
    return _FORMATS.get(PurePath(files[0].removesuffix(".gz").removesuffix(".xz")).suffix, "plain")


def available_splits(data: DataConfig) -> tuple[str, ...]:
    """Return the splits that have files of their own or are taken from the training data."""
    return tuple(s for s in SPLITS if getattr(data, s) is not None or data.split_off(s))


def split_notes(recipe: Recipe) -> list[str]:
    """Return notes for the user on the splits that are scored."""
    data = recipe.data
    if data.train is None or "test" in available_splits(data) or recipe.eval.splits != ("valid",):
        return []
    return ["there is no data.test: the validation split is scored"]
