"""Corpus cards: metadata of corpora, with the location, size and hash of each file.

A card is a YAML file in `cards/`, named after its corpus.  A hash is given only if it was computed from the file or
quoted from a source that a comment names; otherwise it is null.
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
    """A tar archive, compressed or not, of which some members are used."""

    url: Url
    size: Bytes | None = None
    sha256: Sha256 | None = None


class File(_CardPart):
    path: str
    """Path relative to the folder of the corpus."""
    size: Bytes | None = None
    """Size in bytes; null if unknown."""
    sha256: Sha256 | None = None
    url: Url | None = None
    """Download address; null if an archive contains the file, or if it must be placed by hand."""
    archive: str | None = None
    """Key of `Card.archives`."""
    member: str | None = None
    """Name of the file in the archive."""


Files = Annotated[
    tuple[File, ...], BeforeValidator(lambda given: given if isinstance(given, list) else [given]), Field(min_length=1)
]
"""One file, or several that are read one after the other."""


class RowLength(_CardPart):
    """Lengths of the rows of a generated corpus."""

    unit: str
    """Unit of length, such as pairs."""
    trained: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
    """Minimum and maximum length in training."""
    most: int
    """Maximum length that can be generated."""


class MarkedPart(_CardPart):
    """A group of rows of one split."""

    rows: Annotated[int, Field(ge=1)]
    tokens: tuple[Annotated[int, Field(ge=1)], int]
    """Minimum and maximum number of tokens in a row."""
    pairs: int = 0
    """Recall: number of keys, each with its value."""


class Marked(_CardPart):
    """Settings of a generator of `data.synthetic.marked`; most of these generators predict marked positions only."""

    writer: str
    """Key of `data.synthetic.marked.WRITERS`."""
    vocabulary: int
    splits: dict[str, tuple[MarkedPart, ...]]
    random_fill: bool = False
    """Recall: whether tokens between queries are random; otherwise they are 0."""
    noise: float = 0.0
    """In-context recall: share of pairs that consist of noise tokens."""
    noise_tokens: int = 0
    copied: int = 0
    """Selective copying: number of tokens to copy."""


class Card(_CardPart):
    """A corpus as described by its YAML file."""

    name: str
    """Value of `data.corpus`; the name of the card's file."""
    title: str
    task: Task
    """Task of the corpus; every corpus also serves language-modeling."""
    format: Literal["lines", "jsonl", "csv", "tsv", "parquet", "plain", "parlai", "generated"]
    """lines: aligned files, one for each language; generated: no files; the others: one file for each split, whose
    rows have named fields (jsonl, csv, tsv, parquet), a text (plain) or a dialogue (parlai)."""
    languages: Annotated[tuple[str, ...], Field(min_length=1)]
    """Translation: values of `data.source` and `data.target`; otherwise the language, or words, tokens or numbers."""
    columns: dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]] = {}
    """Field of each language, or of `source` and `target`, if its name differs; in CSV and TSV without a header, the
    number of the column, from 1."""
    labels: tuple[str, ...] = ()
    """Classification: the labels in order; a row may contain the index of a label instead, from 0."""
    folder: str | None = None
    """Folder of the files below the data folder; null: the name of the corpus."""
    licence: str
    citation: str
    homepage: str | None
    obtain: str | None = None
    """Instructions for obtaining the files if they are not downloaded."""
    note: str | None = None
    tokenized: bool = False
    """Whether the texts are already split into words at spaces, unlike ordinary text."""
    line_tokens: int | None = None
    """Number of tokens in a line of a generated corpus whose next-token distributions are known, in blocks that divide
    a line; null for all other corpora."""
    length: RowLength | None = None
    """Recall and tagging: lengths of the rows, which can exceed those in training."""
    marked: Marked | None = None
    archives: dict[str, Archive] = {}
    splits: dict[str, dict[str, Files]]
    """Split -> language -> files; the only language is `rows` if a file contains both sides."""

    def files(self) -> list[File]:
        return [file for sides in self.splits.values() for parts in sides.values() for file in parts]

    @property
    def downloads(self) -> bool:
        """Whether every file can be downloaded."""
        return all(file.url or file.archive for file in self.files())


@cache
def names() -> tuple[str, ...]:
    """Return the names of all corpora, sorted; names that start with toy- are generated corpora."""
    folder = files("attnkit.data") / "cards"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".yaml")))


def row_length(name: str | None) -> RowLength | None:
    """Return the lengths of the rows of a generated corpus; None for files and for unknown names."""
    return load(name).length if name in names() else None


@cache
def load(name: str) -> Card:
    """Return the card of a corpus.  Raises RecipeError if it is missing (with the nearest name) or malformed."""
    if name not in names():
        suggestion = hint(name, names(), "`attnkit recipe list --corpora` lists them")
        raise RecipeError(f"no corpus is called {quoted(name)}; {suggestion}")
    path = files("attnkit.data") / "cards" / f"{name}.yaml"
    try:
        return Card.model_validate({"name": name, **yaml.safe_load(path.read_text("utf-8"))})
    except (yaml.YAMLError, TypeError) as error:
        raise RecipeError(f"{path}: not a YAML mapping: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        given = "" if first["type"] == "missing" else f", got {first['input']!r:.60}"
        key = ".".join(map(str, first["loc"]))
        raise RecipeError(f"{path}: {key}: {first['msg']}{given}") from None
