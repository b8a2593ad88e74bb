"""Corpus cards: what a corpus is, where its files lie, their sizes and hashes.

A card is a YAML file in `cards/`, named after its corpus.  A hash stands in it only where it was
computed from the file or quoted from a source that a comment names; otherwise it is null.
"""

from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from attnkit.errors import RecipeError
from attnkit.recipe.schema import Task
from attnkit.text import hint, quoted


class _CardPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Bytes = Annotated[int, Field(ge=0)]
Url = Annotated[str, Field(pattern=r"^https://[^/?#@:]+")]


class Archive(_CardPart):
    """A tar archive, compressed or not, of which some members are wanted."""

    url: Url
    size: Bytes | None = None
    sha256: Sha256 | None = None


class File(_CardPart):
    """One file of a corpus."""

    path: str
    """Below the folder of the corpus."""
    size: Bytes | None = None
    """Bytes; null where it is not known."""
    sha256: Sha256 | None = None
    """Null where nobody computed it."""
    url: Url | None = None
    """Where it is downloaded from; null with an archive, or where it must be put by hand."""
    archive: str | None = None
    """The archive that holds it."""
    member: str | None = None
    """Its name in that archive."""


Files = Annotated[
    tuple[File, ...], BeforeValidator(lambda given: given if isinstance(given, list) else [given]), Field(min_length=1)
]
"""One file, or a list of files that are read one after the other."""


class RowLength(_CardPart):
    """How long the rows of a generated corpus are, and can be."""

    unit: str
    """What is counted, such as pairs."""
    trained: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """The shortest and the longest row of training."""
    most: int
    """The longest row that can be made."""


class MarkedPart(_CardPart):
    """Some rows of a split of marked positions."""

    rows: Annotated[int, Field(ge=1)]
    tokens: tuple[Annotated[int, Field(ge=1)], int]
    """The shortest and the longest row."""
    pairs: int = 0
    """Recall: keys, each with its value."""


class Marked(_CardPart):
    """How a generator writes rows token by token: of most, marked positions are predicted."""

    writer: str
    """A function of `data.synthetic.marked`."""
    vocabulary: int
    splits: dict[str, tuple[MarkedPart, ...]]
    random_fill: bool = False
    """Recall: whether tokens between queries are random, or all 0."""
    noise: float = 0.0
    """In-context recall: share of pairs that are of noise tokens."""
    noise_tokens: int = 0
    copied: int = 0
    """Selective copying: tokens to copy."""


class Card(_CardPart):
    """A corpus as its YAML file describes it."""

    name: str
    """The corpus word of recipes: the name of the card's file."""
    title: str
    task: Task
    """That of its recipes; all corpora serve language-modeling, too."""
    format: Literal["lines", "jsonl", "csv", "tsv", "parquet", "plain", "parlai", "generated"]
    """lines: aligned files, one for each language; generated: none; the others: one file a split, with a row each of
    named fields (jsonl, csv, tsv, parquet), of a text (plain), or of a dialogue (parlai)."""
    languages: Annotated[tuple[str, ...], Field(min_length=1)]
    """Of a translation, the words that `data.source` and `data.target` may be; else what texts consist of."""
    columns: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = {}
    """The field of each language, or of `source` and `target`, where it is called otherwise.  In
    CSV and TSV without a line of names it is a number, from 1."""
    labels: tuple[str, ...] = ()
    """Classification: the labels in order; a row may have the number of one instead, from 0."""
    folder: str | None = None
    """Where its files are below the data folder; null: in a folder of its name."""
    licence: str
    citation: str
    homepage: str | None
    obtain: str | None = None
    """How to come by the files where they are not downloaded."""
    note: str | None = None
    tokenized: bool = False
    """Whether the texts are split into words at spaces already, as no reader would write them."""
    line_tokens: int | None = None
    """Tokens of each line of a generated corpus of which the distribution of every next token is
    known, in blocks that divide a line; null for all others."""
    length: RowLength | None = None
    """Recall and tagging: the length of rows, which can be made longer than training sees them."""
    marked: Marked | None = None
    """How the generator writes rows token by token."""
    archives: dict[str, Archive] = {}
    splits: dict[str, dict[str, Files]]
    """Split -> language -> files; the only key is `rows` where a file holds both sides."""

    def files(self) -> list[File]:
        return [file for sides in self.splits.values() for parts in sides.values() for file in parts]

    @property
    def downloads(self) -> bool:
        """Whether every file can be downloaded."""
        return all(file.url or file.archive for file in self.files())


@cache
def names() -> tuple[str, ...]:
    """The corpus words that recipes may use, sorted; those that start with toy- are generated."""
    folder = files("attnkit.data") / "cards"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


def row_length(name: str | None) -> RowLength | None:
    """How long the rows of a corpus can be made; None for files, and for what is not known."""
    return load(name).length if name in names() else None


@cache
def load(name: str) -> Card:
    """The card of a corpus.

    Raises RecipeError: there is no such card (the nearest name is given), or it is malformed.
    """
    if name not in names():
        near = hint(name, names(), "`attnkit recipe list --corpora` lists them")
        raise RecipeError(f"no corpus is called {quoted(name)}; {near}")
    path = files("attnkit.data") / "cards" / f"{name}.yaml"
    try:
        return Card.model_validate({"name": name, **yaml.safe_load(path.read_text("utf-8"))})
    except (yaml.YAMLError, TypeError) as error:
        raise RecipeError(f"{path}: no YAML with keys: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        got = "" if fault["type"] == "missing" else f", got {fault['input']!r:.60}"
        key = ".".join(map(str, fault["loc"]))
        raise RecipeError(f"{path}: {key}: {fault['msg']}{got}") from None
