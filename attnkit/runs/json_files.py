"""The JSON files of a run: their schemas, and the function that reads all of them."""

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
SchemaT = TypeVar("SchemaT", bound=BaseModel)
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Schema(BaseModel):
    """A schema with strict types, without conversions; entries of other versions are accepted."""

    model_config = ConfigDict(strict=True, extra="allow")


class Entry(Schema):
    """Immutable manifest, or entry of a manifest."""

    model_config = ConfigDict(frozen=True)


class WithoutNone(Schema):
    """Schema whose entries without a value are omitted when written."""

    @model_serializer(mode="wrap")
    def _drop_none(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


class Finished(Entry):
    """Outcome of a training."""

    step: Count
    seconds: Seconds
    updates: Count | None = None
    tokens: Count | None = None
    tokens_per_second: Seconds | None = None
    peak_memory_bytes: Count | None = None
    reason: str | None = None

    @property
    def last(self) -> int:
        """Step at which training ended; the step of the selected weights if it is unknown."""
        return self.step if self.updates is None else self.updates


class RecordedChange(Entry):
    """Change of a recipe key after update `step`."""

    step: Count
    key: str
    old: str
    new: str


class PluginFile(Entry):
    """Origin of a mechanism from outside attnkit."""

    origin: str = Field(alias="from")
    sha256: Sha256


class TrialOf(Entry):
    """What a run is a trial of: one value of a key for a variant."""

    variant: str
    key: str
    value: str
    diverged: str | None = None
    """Why the trial ended before its last update."""


class TunedTrial(Entry):
    """Outcome of a trial of one value."""

    value: str
    score: float | None = None
    """Monitor on validation data; None if the trial diverged."""
    loss: float | None = None
    diverged: str | None = None


class Tuned(Entry):
    """Selection of a recipe value by trials."""

    key: str
    value: str
    was: dict[str, str]
    """The recipe's own values of the keys that the selected value changes."""
    steps: Count | None = None
    """Updates of a trial; None: as many as in the recipe."""
    seed: Count
    monitor: str
    trials: list[TunedTrial]


class LeftOut(Entry):
    """What a results file omits."""

    files: list[str]
    log_records: Count | None
    log_sha256: Sha256 | None


class InitialRun(Entry):
    """The run that a training started from."""

    run: str
    """Folder of the run."""
    recipe: str
    variant: str
    seed: int
    weights: str
    """SHA-256 of the weights."""


class Converted(InitialRun):
    """The run whose attention was replaced, and the conversion; see `attnkit.experiment.conversion`."""

    transfer: Count
    """Updates of attention transfer."""
    kept: list[str] = []
    """Names of weights: `kept` were taken over, `new` were created, `left_out` were dropped."""
    new: list[str] = []
    left_out: list[str] = []
    layers_with_averaged_maps: Count = 0
    mean_squared_error: dict[str, float] | None = None
    """Error of attention transfer: `first` and `last`."""


SEALED = 2
"""Format of manifests that include their own SHA-256."""
_SHA256, _FORMAT = "sha256", "format"
_HASH = re.compile(r"[0-9a-f]{64}")


def seal(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a manifest with the current format and the SHA-256 of all other entries."""
    rest = {key: value for key, value in entries.items() if key not in (_SHA256, _FORMAT)}
    rest[_FORMAT] = SEALED
    return {**rest, _SHA256: files.sha256_json(rest)}


def validate_manifest(entries: Mapping[str, Any], schema: type[SchemaT], where: str) -> SchemaT:
    """Validate the entries of a manifest against their SHA-256 and the schema.

    A manifest of format `SEALED` must have the SHA-256. In older ones it may be missing, but then no unknown entry may
    look like a SHA-256, which would be the entry under a changed name.

    Raises:
        DataError: If the manifest was changed or is damaged.
    """
    rest = {key: value for key, value in entries.items() if key != _SHA256}
    unknown = [v for k, v in rest.items() if k not in schema.model_fields and isinstance(v, str)]
    has_hash = _SHA256 in entries or rest.get(_FORMAT, 1) != 1 or any(map(_HASH.fullmatch, unknown))
    if has_hash and entries.get(_SHA256) != files.sha256_json(rest):
        raise DataError(f"{where}: was changed (its SHA-256 differs from its entry {_SHA256})")
    return parse(entries, schema, where)


class Manifest(Entry):
    """Contents of a run's manifest.json."""

    format: Literal[2] | None = None
    sha256: Sha256 | None = None
    """SHA-256 of all other entries; None in version 0.1.0."""
    recipe: str
    variant: str
    seed: int
    files: dict[str, Sha256 | None]
    """SHA-256 of the run's files; None while a file is being written."""
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
    """All variants of the recipe, in its order."""
    parameters: Count | None = None
    finished: Finished | None = None
    failed: str | None = None
    changes: list[RecordedChange] = []
    plugins: dict[str, PluginFile | None] = {}
    """Mechanisms from outside attnkit; None for a mechanism that a changed recipe no longer uses."""
    init: InitialRun | None = None
    converted: Converted | None = None
    published: dict[str, Any] | None = None
    """Published figures in the recipe file when `attnkit train` last read it; validated where they are used."""
    log_id: str | None = None
    """Identifier of the run in wandb and trackio, the same after it is resumed."""
    trial: TrialOf | None = None
    tuned: Tuned | None = None
    left_out: LeftOut | None = None


class StoredMetric(Schema):
    score: float | None
    signature: str = ""


class StoredContexts(WithoutNone):
    """How questions were answered; None for settings that do not apply or are unknown."""

    method: str = ""
    """Method, with the values of swept options."""
    beta: float | None = None
    eta: float | None = None
    top_p: float | None = None
    alpha: float | None = None
    limit: Count | None = None
    chat: bool | None = None
    """For external models: whether questions were formatted as chat messages."""
    template: str | None = None
    """For external models: format of the text made of a context and the question."""


class StoredSearch(SearchConfig):
    """The search that produced the outputs of a split."""

    model_config = ConfigDict(strict=True, extra="allow")
    _later = ("contexts",)

    contexts: StoredContexts | None = None
    """How questions were answered; None for other tasks."""

    @classmethod
    def of(cls, search: SearchConfig, contexts: StoredContexts | None = None) -> "StoredSearch":
        """Return a search with the way in which questions were answered, if any."""
        return cls(**search.model_dump(), contexts=contexts)

    @property
    def key(self) -> str:
        """String that is equal for searches that produce equal outputs."""
        contexts = self.contexts and self.contexts.model_dump()
        return json.dumps(effective(self) | {"contexts": contexts}, sort_keys=True, separators=(",", ":"))

    @property
    def name(self) -> str:
        """Part of a file name, one for each key: `beam-5-1a2b3c4d`."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()[:8]
        beam = f"-{self.beam}" if self.method == "beam" else ""
        return f"{self.method}{beam}-{digest}"


class StoredScoring(WithoutNone):
    """How outputs were scored; extra entries are versions of packages."""

    tokenize: str | list[str] | None = None
    words: str = "classic"
    """Word rule; absent in scores from before it was an option."""
    lowercase: bool | None = None
    sentences: str | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Versions of packages, including attnkit, by name."""
        return self.model_extra or {}


def _none_if_incomplete(indices: Any) -> Any:
    """Return None for lists with missing items, which older versions wrote."""
    return None if isinstance(indices, list) and None in indices else indices


class Decoding(Schema):
    """How outputs were decoded, and the speed; 0 or None if unknown."""

    seconds: Seconds = 0.0
    sentences_per_second: Seconds | None = None
    tokens_per_second: Seconds | None = None
    tokens: Count | None = None
    device: str | None = None
    threads: Count | None = None
    lines: Count = 0
    empty: Count = 0
    """Number of lines without text."""
    truncated: Count = 0
    """Number of lines that were only partly read."""
    unfinished: Count = 0
    """Number of outputs that did not end within the maximum length."""
    chosen: Annotated[list[Count] | None, BeforeValidator(_none_if_incomplete)] = None
    """Index of the deciding context of each answer; None if the method has none."""
    cut: Count = 0
    """Number of questions that lost some of their contexts."""


class StoredDigests(Schema):
    """SHA-256 of the decoded sources, of the references, and of the files with outputs and statistics."""

    source: str = ""
    references: str = ""
    outputs: str = ""
    statistics: str = ""


class StoredSplit(WithoutNone):
    """Entry of a split in scores.json."""

    metrics: dict[str, StoredMetric] = {}
    split: str = ""
    """Name of the split; for questions with method and number of contexts."""
    weights: str = ""
    """SHA-256 of the weights."""
    search: StoredSearch = StoredSearch()
    scoring: StoredScoring = StoredScoring()
    sentences: Count = 0
    empty_references: Count = 0
    unknown: dict[str, str] = {}
    """Descriptions of what the tokenizer does not know in sources and targets."""
    warnings: list[str] = []
    decode: Decoding | None = None
    """None if no metric needs outputs."""
    digests: StoredDigests = StoredDigests()


class Scores(RootModel[dict[str, StoredSplit]]):
    """Contents of scores.json, by split."""


class KeptSplit(Schema):
    """Contents of data/<split>.json."""

    bytes: Count
    fingerprint: str
    sha256: Sha256 | None
    contexts: Count | None


class KeptRow(Schema):
    """A line of data/<split>.jsonl; see `attnkit.data.rows.Row`."""

    model_config = ConfigDict(strict=True, extra="forbid")
    source: str
    target: str
    references: list[str] = []
    contexts: list[str] = []
    gold: Count | None = None


CheckpointFileName = Literal["tensors.safetensors", "state.json"]


class CheckpointFile(Entry):
    """Size in bytes and SHA-256 of a file."""

    size: Count
    sha256: Sha256


class CheckpointManifest(Entry):
    """Contents of a checkpoint's manifest.json."""

    format: Literal[1, 2]
    step: Count
    files: dict[CheckpointFileName, CheckpointFile] = Field(min_length=2)
    log: Sha256 | None = None


def read(path: Path, schema: type[SchemaT], limit: int = files.JSON_LIMIT) -> SchemaT:
    """Return a JSON file as a `schema` object. Raises MissingInputError without it, DataError if it does not fit."""
    return parse(files.read_json(path, limit), schema, str(path))


def parse(value: Any, schema: type[SchemaT], where: str) -> SchemaT:
    """Validate a value by the schema. Raises DataError, which begins with `where`, if it does not fit."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"])) or "it"
        if fault["type"] == "missing":
            raise DataError(f"{where}: {key} is missing") from error
        rule = fault["msg"].removeprefix("Value error, ").partition(" or instance of")[0]
        rule = "Input should be 64 hexadecimal digits" if fault["type"] == "string_pattern_mismatch" else rule
        # other messages of pydantic, such as "Extra inputs are not permitted", are sentences
        rule = f" must {rule.removeprefix('Input should ')}" if rule.startswith("Input should ") else f": {rule}"
        raise DataError(f"{where}: {key}{rule}, got {fault['input']!r:.60}") from error
