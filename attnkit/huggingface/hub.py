"""Files of Hugging Face models: a local directory, or a hub model that is downloaded and cached.

Only configs, vocabularies and safetensors weights are ever requested from the hub: no pickles, no code.
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
"""Single file; index and shards; weights of a converted model."""
TEXTS = ("*.json", "*.txt", "*.model", "*.spm", "*.tiktoken", "*.jinja", "*.vocab", "*.bpe", "bpe.codes", "*.codes")
"""Configs and tokenizer files."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
SHARD = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)
"""Valid file names in an index."""
MAX_INDEX_BYTES = 64 << 20
"""Maximum size of an index in bytes."""
UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})
HUB_NAME = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
"""OWNER/MODEL; the oldest hub models have no owner."""


class ModelFolder(NamedTuple):
    """A directory of a model's files."""

    name: str
    """Directory or hub name, as given by the user."""
    path: Path
    revision: str | None = None
    """Commit on the hub; None for a local directory."""


def model_folder(name: str, *, offline: bool = False) -> ModelFolder:
    """Find a model's directory with safe weights; otherwise the hub model in the cache, downloaded if necessary.

    Raises:
        MissingInputError: There is no such directory or hub model, or the directory has no model.
        DataError: The weights are pickled.
        UnavailableError: The network is unavailable or forbidden, or the hub refuses.
        OutputError: The cache cannot be written.
    """
    path = Path(name)
    if name and path.is_dir():
        return _checked(ModelFolder(name, path))
    if name and path.exists():
        raise MissingInputError(f"{name}: is a file; give the directory of a model")
    if not HUB_NAME.fullmatch(name):
        raise MissingInputError(f"{quoted(name)}: no such directory, and not a hub name (OWNER/MODEL)")
    local = is_offline(offline) or hub().is_offline_mode() or _unreachable()
    try:
        with quiet(network=not local):
            hub().hf_hub_download(name, CONFIG, local_files_only=local)
            path = Path(
                hub().snapshot_download(
                    name,
                    allow_patterns=[*TEXTS, *WEIGHTS],
                    # subfolders have the same model in other formats
                    ignore_patterns=["*/*", "consolidated*"],
                    local_files_only=local,
                )
            )
    except Exception as error:
        raise _refusal(name, error) from error
    return _checked(ModelFolder(name, path, path.name))


def _checked(folder: ModelFolder) -> ModelFolder:
    """Return `folder`; raises MissingInputError or DataError unless it has weights that are safe to read."""
    path = folder.path
    if not (path / CONFIG).is_file():
        reason = (
            "only an adapter: merge the adapter into its base model"
            if (path / "adapter_config.json").is_file()
            else f"no {CONFIG}: give the directory of a run, of a Hugging Face model, or a hub name"
        )
        raise MissingInputError(f"{folder.name}: {reason}")
    for index in path.glob("*.safetensors.index*.json"):
        _check_shards(index)
    if any((path / weights).is_file() for weights in WEIGHTS[:2]) or is_converted(path):
        return folder
    pickled = sorted(file.name for pattern in PICKLES for file in path.glob(pattern))
    if pickled or folder.revision is not None:
        formats = f"only as {pickled[0]}" if pickled else "only in other formats, such as pickles"
        raise DataError(
            f"{folder.name}: the weights exist {formats}, which could run code: save the model as "
            "safetensors (save_pretrained of transformers)"
        )
    raise MissingInputError(f"{folder.name}: no weights: {WEIGHTS[0]} is missing")


class WeightIndex(json_files.Schema):
    """Index of sharded weights: maps tensor names to file names."""

    weight_map: dict[str, str]


def _check_shards(index: Path) -> None:
    """Raise DataError if an index names anything but safetensors in its folder; transformers itself would read it."""
    weight_map = json_files.read(index, WeightIndex, limit=MAX_INDEX_BYTES).weight_map
    for name in dict.fromkeys(weight_map.values()):
        if not SHARD.fullmatch(name):
            raise DataError(f"{index}: names {quoted(name)}: only safetensors files of the same folder are read")


def _unreachable() -> bool:
    """Return whether DNS cannot resolve the hub, since huggingface_hub would retry for half a minute."""
    host = urlsplit(hub().constants.ENDPOINT).hostname
    try:
        if host and not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError:
        return True
    return False


def _refusal(name: str, error: Exception) -> Exception:
    """Convert an error of huggingface_hub to a one-line error."""
    errors: Any = importlib.import_module("huggingface_hub.errors")
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        return OutputError(f"{name}: the hub's cache cannot be written: {error.strerror}")
    status = getattr(getattr(error, "response", None), "status_code", "?")
    messages: list[tuple[Any, type[Exception], str]] = [
        (
            errors.GatedRepoError,
            UnavailableError,
            "the model is gated: accept the terms on huggingface.co and log in (hf auth login)",
        ),
        (
            (errors.RepositoryNotFoundError, errors.HFValidationError),
            MissingInputError,
            "neither a local directory nor a public model of the hub: check the spelling",
        ),
        (errors.RemoteEntryNotFoundError, MissingInputError, f"the hub's repository has no {CONFIG}: not a model"),
        (errors.HfHubHTTPError, UnavailableError, f"the hub answers with error {status}: try again later"),
        (
            (OSError, errors.LocalEntryNotFoundError),
            UnavailableError,
            "no such directory, not in the local cache of the hub, and the hub cannot be reached (no network, or "
            "--offline or HF_HUB_OFFLINE): give a local directory",
        ),
        (Exception, UnavailableError, f"the hub's response is not usable ({type(error).__name__})"),
    ]
    return next(kind(f"{name}: {text}") for caught, kind, text in messages if isinstance(error, caught))
