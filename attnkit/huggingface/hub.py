"""Where a Hugging Face model's files are: a local directory, or the hub's, downloaded and cached.

Only settings, vocabularies and safetensors weights are ever asked of the hub: no pickles, no code.
"""

import errno
import importlib
import re
import socket
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from attnkit.errors import DataError, MissingInputError, OutputError, UnavailableError
from attnkit.huggingface.quiet import hub, quiet
from attnkit.huggingface.surgery import is_converted
from attnkit.runs import json_files
from attnkit.storage.download import is_offline
from attnkit.text import quoted

CONFIG = "config.json"
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    "model.attnkit*.safetensors",
    "attention.safetensors",
)
"""One file, or an index and its shards; those of a converted model."""
TEXTS = ("*.json", "*.txt", "*.model", "*.spm", "*.tiktoken", "*.jinja", "*.vocab", "*.bpe", "bpe.codes", "*.codes")
"""Settings and vocabularies of all kinds of tokenizers."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)
"""Names of files in an index."""
INDEX = 64 << 20
"""Bytes of an index that are read, at most."""
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})
NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
"""OWNER/MODEL, or one of the hub's oldest models without an owner."""


class ModelFolder(NamedTuple):
    """A directory of a model's files."""

    name: str
    """As the user wrote it."""
    path: Path
    revision: str | None = None
    """The commit, where it came from the hub."""


def model_folder(name: str, *, offline: bool = False) -> ModelFolder:
    """The directory of that name, or the hub's model, downloaded where the cache lacks it.

    It holds a model's settings, and weights that are safe to read.

    Raises:
        MissingInputError: no such directory or hub model, or it holds no model.
        DataError: its weights are pickled.
        UnavailableError: no network, or it was forbidden, or the hub refuses.
    """
    path = Path(name)
    if name and path.is_dir():
        return _checked(ModelFolder(name, path))
    if name and path.exists():
        raise MissingInputError(f"{name}: a file; give the directory of a model")
    if not NAME.fullmatch(name):
        raise MissingInputError(f"{quoted(name)}: no such directory, and not a hub name (OWNER/MODEL)")
    local = is_offline(offline) or hub().is_offline_mode() or _unreachable()
    try:
        with quiet(network=not local):
            hub().hf_hub_download(name, CONFIG, local_files_only=local)
            path = Path(
                hub().snapshot_download(
                    name,
                    allow_patterns=[*TEXTS, *WEIGHTS],
                    # folders hold the same model in other formats
                    ignore_patterns=["*/*", "consolidated*"],
                    local_files_only=local,
                )
            )
    except Exception as error:
        raise _refusal(name, error) from error
    return _checked(ModelFolder(name, path, path.name))


def _checked(place: ModelFolder) -> ModelFolder:
    """The same, refused where it holds no weights that are safe to read."""
    path = place.path
    if not (path / CONFIG).is_file():
        reason = (
            "only an adapter: merge it into its base model"
            if (path / "adapter_config.json").is_file()
            else f"no {CONFIG}: give the directory of a run, of a Hugging Face model, or a hub name"
        )
        raise MissingInputError(f"{place.name}: {reason}")
    for index in path.glob("*.safetensors.index*.json"):
        _check_shards(index)
    if any((path / weights).is_file() for weights in WEIGHTS[:2]) or is_converted(path):
        return place
    pickled = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
    if pickled or place.revision is not None:
        what = f"only as {pickled[0]}" if pickled else "only in other formats, such as pickles"
        raise DataError(
            f"{place.name}: has its weights {what}, which could run code: save it as safetensors "
            "(save_pretrained of transformers)"
        )
    raise MissingInputError(f"{place.name}: no weights: {WEIGHTS[0]} is missing")


class WeightIndex(json_files.Schema):
    """An index of weights: the file of each tensor."""

    weight_map: dict[str, str]


def _check_shards(index: Path) -> None:
    """Refuse an index that leads to anything but safetensors beside it.  Raises DataError.

    transformers itself would read a pickle there, or a file of another folder.
    """
    parts = json_files.read(index, WeightIndex, limit=INDEX).weight_map
    for name in dict.fromkeys(parts.values()):
        if not SHARD.fullmatch(name):
            raise DataError(f"{index}: names {quoted(name)}: only safetensors files of the same folder are read")


def _unreachable() -> bool:
    """Whether the hub's address cannot be found; its library would try for half a minute."""
    host = urlsplit(hub().constants.ENDPOINT).hostname
    try:
        if host and not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False


def _refusal(name: str, error: Exception) -> Exception:
    """What went wrong at the hub, in one line."""
    errors: Any = importlib.import_module("huggingface_hub.errors")
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return OutputError(f"{name}: the hub's cache cannot be written: {error.strerror}")
    status = getattr(getattr(error, "response", None), "status_code", "?")
    told: list[tuple[Any, type[Exception], str]] = [
        (
            errors.GatedRepoError,
            UnavailableError,
            "its owner asks for consent: accept the terms on huggingface.co and log in (hf auth login)",
        ),
        (
            (errors.RepositoryNotFoundError, errors.HFValidationError),
            MissingInputError,
            "neither a directory here nor a public model of the hub: check the spelling",
        ),
        (errors.RemoteEntryNotFoundError, MissingInputError, f"the hub's repository has no {CONFIG}: not a model"),
        (errors.HfHubHTTPError, UnavailableError, f"the hub answers with error {status}: try again later"),
        (
            (OSError, errors.LocalEntryNotFoundError),
            UnavailableError,
            "no such directory, not in the local cache of the hub, and the hub cannot be reached (no network, or "
            "--offline or HF_HUB_OFFLINE): give a local directory",
        ),
        (Exception, UnavailableError, f"the hub's answer cannot be used ({type(error).__name__})"),
    ]
    return next(kind(f"{name}: {text}") for one, kind, text in told if isinstance(error, one))
