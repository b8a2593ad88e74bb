"""The JSON files of a run: what each must hold, and the one reader of all of them."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from attnkit.errors import DataError
from attnkit.recipe.after_training import SearchConfig
from attnkit.recipe.search_settings import effective
from attnkit.storage import files

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Form = TypeVar("Form", bound=BaseModel)
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Schema(BaseModel):
    """Types are those of the file, never converted; entries of other versions are let through."""

    model_config = ConfigDict(strict=True, extra="allow")


class Entry(Schema):
    """A manifest or an entry of it, which is never changed in place."""

    model_config = ConfigDict(frozen=True)


class OnlyKnown(Schema):
    """Entries without a value are left out."""

    @model_serializer(mode="wrap")
    def _with_values(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class Finished(Entry):
    """What a training came to."""

    step: Count
    seconds: Seconds
    updates: Count | None = None
    tokens: Count | None = None
    tokens_per_second: Seconds | None = None
    peak_memory_bytes: Count | None = None
    reason: str | None = None

    @property
    def last(self) -> int:
        """The step that training ended with; that of the chosen weights where it is not known."""
        return self.step if self.updates is None else self.updates


class RecordedChange(Entry):
    """What was changed after which update."""

    step: Count
    key: str
    old: str
    new: str


class PluginFile(Entry):
    """Where a mechanism came from."""

    origin: str = Field(alias="from")
    sha256: Sha256


class TrialOf(Entry):
    """What a run is a trial of: a value of a key for a variant."""

    variant: str
    key: str
    value: str
    diverged: str | None = None
    """Why it ended before its last update."""


class TunedTrial(Entry):
    """What one value came to."""

    value: str
    score: float | None = None
    """Value of the monitor on validation data; None where it diverged."""
    loss: float | None = None
    diverged: str | None = None


class Tuned(Entry):
    """How a value of the recipe was chosen by trials."""

    key: str
    value: str
    was: dict[str, str]
    """What the recipe itself says of the keys that this changes."""
    steps: Count | None = None
    """Updates of a trial, where they are not those of the recipe."""
    seed: Count
    monitor: str
    trials: list[TunedTrial]


class LeftOut(Entry):
    """What the results of a run lack."""

    files: list[str]
    log_records: Count | None
    log_sha256: Sha256 | None


class InitialRun(Entry):
    """The run that a training began from."""

    run: str
    """Its folder."""
    recipe: str
    variant: str
    seed: int
    weights: str
    """Their SHA-256."""


class Converted(InitialRun):
    """The run whose attention was replaced, and how; see `attnkit.experiment.conversion`."""

    transfer: Count
    """Updates of attention transfer."""
    kept: list[str] = []
    """Names of the weights that were taken over; then of new ones, and of those left out."""
    new: list[str] = []
    left_out: list[str] = []
    layers_with_averaged_maps: Count = 0
    mean_squared_error: dict[str, float] | None = None
    """Of attention transfer, `first` and `last`."""


SEALED = 2
"""Format of manifests with a SHA-256 of themselves."""
_OWN, _FORMAT = "sha256", "format"
_HASH = re.compile(r"[0-9a-f]{64}")


def sealed(entries: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with its format and the SHA-256 of all its entries, in place of those it had."""
    rest = {key: value for key, value in entries.items() if key not in (_OWN, _FORMAT)}
    rest[_FORMAT] = SEALED
    return {**rest, _OWN: files.sha256_json(rest)}


def opened(entries: Mapping[str, Any], schema: type[Form], where: str) -> Form:
    """A manifest, compared with its SHA-256.

    A manifest of this format must have it; in an older one without it no entry may look like it under another name.

    Raises DataError: it was changed or is damaged.
    """
    rest = {key: value for key, value in entries.items() if key != _OWN}
    strange = [v for k, v in rest.items() if k not in schema.model_fields and isinstance(v, str)]
    sealed = _OWN in entries or rest.get(_FORMAT, 1) != 1 or any(map(_HASH.fullmatch, strange))
    if sealed and entries.get(_OWN) != files.sha256_json(rest):
        raise DataError(f"{where}: was changed since attnkit wrote it (its SHA-256 differs from its entry {_OWN})")
    return parse(entries, schema, where)


class Manifest(Entry):
    """manifest.json of a run."""

    format: Literal[2] | None = None
    sha256: Sha256 | None = None
    """Of all other entries; None in one of version 0.1.0."""
    recipe: str
    variant: str
    seed: int
    files: dict[str, Sha256 | None]
    """SHA-256 of the run's files, null while one is being written."""
    hashes: dict[str, str] = {}
    """SHA-256 of the recipe, the corpus, the prepared data and the tokenizer."""
    attnkit: str | None = None
    python: str | None = None
    torch: str | None = None
    machine: str | None = None
    code: Sha256 | None = None
    """SHA-256 of attnkit's modules."""
    device: str | None = None
    threads: Count | None = None
    precision: str | None = None
    parallel: str | None = None
    world_size: Count = 1
    baseline: str | None = None
    variants: list[str] | None = None
    """All of the recipe, in its order."""
    parameters: Count | None = None
    finished: Finished | None = None
    failed: str | None = None
    changes: list[RecordedChange] = []
    plugins: dict[str, PluginFile | None] = {}
    """Mechanisms from outside attnkit; None for one that a changed recipe no longer uses."""
    init: InitialRun | None = None
    converted: Converted | None = None
    published: dict[str, Any] | None = None
    """The figures of the recipe file when `attnkit train` last read it; of that form where they are read."""
    log_id: str | None = None
    """By what wandb and trackio know the run, also when it is resumed."""
    trial: TrialOf | None = None
    """Of a trial."""
    tuned: Tuned | None = None
    """Of a run whose recipe has a value that trials chose."""
    left_out: LeftOut | None = None


class StoredMetric(Schema):
    """One score."""

    score: float | None
    signature: str = ""


class StoredContexts(OnlyKnown):
    """How questions were answered; None where it has no part in that, or is not known."""

    method: str = ""
    """With the values of what was swept."""
    beta: float | None = None
    eta: float | None = None
    top_p: float | None = None
    alpha: float | None = None
    limit: Count | None = None
    chat: bool | None = None
    """Of a model from elsewhere: whether questions were put as messages."""
    template: str | None = None
    """Of a model from elsewhere: how a context and the question become a text."""


class StoredSearch(SearchConfig):
    """How the outputs of a split were found; other searches have names of their own."""

    model_config = ConfigDict(strict=True, extra="allow")
    _later = ("contexts",)

    contexts: StoredContexts | None = None
    """None where no questions were asked."""

    @classmethod
    def of(cls, search: SearchConfig, contexts: StoredContexts | None = None) -> "StoredSearch":
        """A search, and how questions were answered where they were."""
        return cls(**search.model_dump(), contexts=contexts)

    @property
    def key(self) -> str:
        """A text that is the same for searches that give the same outputs."""
        contexts = self.contexts and self.contexts.model_dump()
        return json.dumps(effective(self) | {"contexts": contexts}, sort_keys=True, separators=(",", ":"))

    @property
    def name(self) -> str:
        """As part of a file name, one for each key: `beam-5-1a2b3c4d`."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:8]
        beam = f"-{self.beam}" if self.method == "beam" else ""
        return f"{self.method}{beam}-{digest}"


class StoredScoring(OnlyKnown):
    """How outputs were scored, and, as further entries, by which versions of packages."""

    tokenize: str | list[str] | None = None
    words: str = "classic"
    """Scores from before they could be chosen do not say it."""
    lowercase: bool | None = None
    sentences: str | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Those of packages, attnkit among them, by name."""
        return self.model_extra or {}


def _known(chosen: Any) -> Any:
    """None in place of a list that lacks some, as older versions wrote."""
    return None if isinstance(chosen, list) and None in chosen else chosen


class Decoding(Schema):
    """How outputs were made, and how fast; 0 or None where it is not known."""

    seconds: Seconds = 0.0
    sentences_per_second: Seconds | None = None
    tokens_per_second: Seconds | None = None
    tokens: Count | None = None
    device: str | None = None
    threads: Count | None = None
    lines: Count = 0
    empty: Count = 0
    """Lines without text."""
    truncated: Count = 0
    """Lines of which only a part was read."""
    unfinished: Count = 0
    """Outputs that did not end within the longest length."""
    chosen: Annotated[list[Count] | None, BeforeValidator(_known)] = None
    """The deciding context of each answer, from 0; None where the method has none."""
    cut: Count = 0
    """Questions that lost some of their contexts."""


class StoredDigests(Schema):
    """SHA-256 of what was decoded, of what it was compared with, and of both files beside it."""

    source: str = ""
    references: str = ""
    outputs: str = ""
    statistics: str = ""


class StoredSplit(OnlyKnown):
    """What scores.json says of a split."""

    metrics: dict[str, StoredMetric] = {}
    split: str = ""
    """The split (of questions: with method and number of contexts)."""
    weights: str = ""
    """SHA-256 of the weights."""
    search: StoredSearch = StoredSearch()
    scoring: StoredScoring = StoredScoring()
    sentences: Count = 0
    empty_references: Count = 0
    unknown: dict[str, str] = {}
    """What of sources and targets the tokenizer does not know, in words."""
    warnings: list[str] = []
    decode: Decoding | None = None
    """None where no metric reads outputs."""
    digests: StoredDigests = StoredDigests()


class Scores(RootModel[dict[str, StoredSplit]]):
    """scores.json, by split."""


class KeptSplit(Schema):
    """data/<split>.json."""

    bytes: Count
    fingerprint: str
    sha256: Sha256 | None
    contexts: Count | None


class KeptRow(Schema):
    """A line of data/<split>.jsonl: see `attnkit.data.rows.Row`."""

    model_config = ConfigDict(strict=True, extra="forbid")
    source: str
    target: str
    references: list[str] = []
    contexts: list[str] = []
    gold: Count | None = None


CheckpointFileName = Literal["tensors.safetensors", "state.json"]


class CheckpointFile(Entry):
    """Size and hash of one file."""

    size: Count
    sha256: Sha256


class CheckpointManifest(Entry):
    """manifest.json of a checkpoint."""

    format: Literal[1, 2]
    step: Count
    files: dict[CheckpointFileName, CheckpointFile] = Field(min_length=2)
    log: Sha256 | None = None


def read(path: Path, schema: type[Form], limit: int = files.JSON_LIMIT) -> Form:
    """A file that holds one JSON object of this form.

    Raises MissingInputError: there is no such regular file; DataError: it is no JSON object, or an
    entry is missing or of another type; says which.
    """
    return parse(files.read_json(path, limit), schema, str(path))


def parse(value: Any, schema: type[Form], where: str) -> Form:
    """The value as this form.  Raises DataError about `where`."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "it"
        if fault["type"] == "missing":
            raise DataError(f"{where}: {key} is missing") from error
        rule = fault["msg"].removeprefix("Input should ").partition(" or instance of")[0]
        rule = "be 64 hexadecimal digits" if fault["type"] == "string_pattern_mismatch" else rule
        raise DataError(f"{where}: {key} should {rule}, is {fault['input']!r:.60}") from error
