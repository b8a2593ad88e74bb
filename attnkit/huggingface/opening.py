"""Opening of Hugging Face models by the public API of transformers, without pickles or code from repositories."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch

from attnkit import __version__
from attnkit.device import pick_device
from attnkit.errors import AttnkitError, DataError, MissingInputError, UnavailableError, UsageError, out_of_memory
from attnkit.huggingface import surgery
from attnkit.huggingface.hub import CONFIG, ModelFolder, model_folder
from attnkit.huggingface.quiet import quiet, transformers
from attnkit.runs import json_files
from attnkit.storage.files import input_error
from attnkit.text import hint

Shape = Literal["encoder-decoder", "decoder", "encoder"]
"""Shape of a model, as in recipes; a decoder is a causal language model."""

MIN_VERSION = 5
"""Minimum major version of transformers."""
DTYPES = ("float32", "bfloat16", "float16", "auto")
"""Dtypes; auto is the dtype of the saved weights."""
LOCAL_ONLY: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Options of `from_pretrained` that forbid downloads and code from the repository."""
NO_LIMIT = 10**9
"""Threshold of `model_max_length` above which a tokenizer has no limit."""
MAX_HASHED_BYTES = 1 << 30
"""Maximum size of hashed weights in bytes: about one second."""


@dataclass(frozen=True)
class Pretrained:
    """A model in evaluation mode, with its tokenizer."""

    name: str
    """Directory or hub name, as given by the user."""
    shape: Shape
    model: Any
    """A PreTrainedModel, with a language modeling head unless it is an encoder."""
    tokenizer: Any
    """A PreTrainedTokenizerBase."""
    device: torch.device
    limit: int | None
    """Maximum number of tokens per side, special tokens included; None: unlimited."""
    path: Path
    revision: str | None = None
    """Commit on the hub."""

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Switch to an attention implementation that returns weights: transformers' eager one, or attnkit's."""
        previous = self.model.config._attn_implementation
        converted = previous == surgery.IMPLEMENTATION
        with quiet():
            self.model.set_attn_implementation(surgery.WITH_MAPS if converted else "eager")
        try:
            yield
        finally:
            with quiet():
                self.model.set_attn_implementation(previous)

    @cached_property
    def facts(self) -> dict[str, str]:
        """Hashes of the weights (up to `MAX_HASHED_BYTES`) and tokenizer, revision, and versions of the libraries."""
        facts = {
            "weights": _digest(sorted(self.path.glob("model*.safetensors")) + surgery.files(self.path)),
            "tokenizer": _digest([self.path / "tokenizer.json"]),
            "revision": self.revision,
            "attnkit": __version__,
            "torch": torch.__version__,
            "transformers": transformers().__version__,
        }
        return {key: value for key, value in facts.items() if value}


def open_model(name: str | Path, *, device: str = "auto", dtype: str = "float32", offline: bool = False) -> Pretrained:
    """Open a local directory, otherwise a model of the hub.

    The network is used only for a hub name, and not with `offline`, ATTNKIT_OFFLINE or HF_HUB_OFFLINE.

    Args:
        name: directory, or OWNER/MODEL.
        device: device; auto selects a GPU if available.
        dtype: float32, bfloat16, float16 or auto (as saved).

    Raises:
        UnavailableError: transformers, another required package, the device or the network is not available.
        MissingInputError: The model does not exist, or a part of it is missing.
        DataError: The model's files are damaged, unknown, pickled, or need code from the repository.
        UsageError: The dtype is unknown.
    """
    require_transformers()
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype}: {hint(dtype, DTYPES)}")
    device = pick_device(device)
    folder = model_folder(str(name), offline=offline)
    try:
        return _open(folder, device, dtype)
    except BaseException as error:  # of other libraries; a Rust panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _refusal(folder, error) from error


def _open(folder: ModelFolder, device: str, dtype: str) -> Pretrained:
    """Open the model of a folder; errors of transformers are not converted."""
    with quiet():
        shape, auto = _kind(folder)
        options: dict[str, Any] = {"dtype": "auto" if dtype == "auto" else getattr(torch, dtype)}
        converted = surgery.is_converted(folder.path)
        if converted:
            options["variant"] = surgery.VARIANT
        model = _weights(folder, shape, auto, options).to(device)
        tokenizer = _tokenizer(folder, model)
    limit = _limit(model, tokenizer)
    if converted and (maximum := surgery.restore(model, folder.path)) is not None:
        limit = maximum if limit is None else min(limit, maximum)
    return Pretrained(folder.name, shape, model, tokenizer, torch.device(device), limit, folder.path, folder.revision)


def require_transformers() -> None:
    """Raise UnavailableError if transformers is missing or too old."""
    advice = f"Hugging Face models need transformers >= {MIN_VERSION}: pip install 'attnkit[hf]'"
    try:
        installed = version("transformers")
    except PackageNotFoundError:
        raise UnavailableError(advice) from None
    if int(installed.split(".")[0]) < MIN_VERSION:
        raise UnavailableError(f"{advice} (here: {installed})")


class PretrainedConfig(json_files.Schema):
    """Fields of config.json that are checked before transformers reads it."""

    model_type: str
    architectures: list[str] | None = None
    auto_map: dict[str, Any] | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None


def _settings(folder: ModelFolder) -> PretrainedConfig:
    """Read config.json; raises DataError if transformers itself does not implement the model type."""
    settings = json_files.read(folder.path / CONFIG, PretrainedConfig)
    known, model_type = transformers().CONFIG_MAPPING, settings.model_type
    if model_type in known:
        return settings
    if settings.auto_map:
        raise DataError(
            f"{folder.name}: a model of type {model_type!r} needs code from its repository, which attnkit "
            "never runs: use a model that transformers itself supports"
        )
    raise DataError(
        f"{folder.name}: transformers {transformers().__version__} has no model of type "
        f"{model_type!r}; {hint(model_type, known, 'update transformers?')}"
    )


def _kind(folder: ModelFolder) -> tuple[Shape, Any]:
    """Determine the shape of the model and the auto class that opens it."""
    settings = _settings(folder)
    library = transformers()
    try:
        config = library.AutoConfig.from_pretrained(folder.path, **LOCAL_ONLY)
    except Exception as error:
        raise DataError(f"{folder.name}: {CONFIG} is malformed: {error_line(error)}") from error
    layers = getattr(config, "num_hidden_layers", 1)
    if not isinstance(layers, int) or layers < 1:  # transformers accepts a model without layers
        raise DataError(f"{folder.name}: {CONFIG} is malformed: a model of {layers} layers")
    config_class, architecture = type(config), (settings.architectures or [""])[0]
    causal = library.MODEL_FOR_CAUSAL_LM_MAPPING
    masked = library.MODEL_FOR_MASKED_LM_MAPPING
    encodes = library.MODEL_FOR_TEXT_ENCODING_MAPPING
    if architecture.endswith("EncoderModel") and architecture == _class_name(encodes, config_class):
        return "encoder", library.AutoModelForTextEncoding
    if config.is_encoder_decoder and config_class in library.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return "encoder-decoder", library.AutoModelForSeq2SeqLM
    if config_class in causal:  # some model types are both causal and masked
        only_causal = architecture == _class_name(causal, config_class) != _class_name(masked, config_class)
        flags = (getattr(config, flag, False) for flag in ("is_decoder", "causal"))
        if config_class not in masked or only_causal or any(flags):
            return "decoder", library.AutoModelForCausalLM
    if config_class in masked or config_class in encodes:
        return "encoder", library.AutoModel
    raise DataError(
        f"{folder.name}: a {settings.model_type} model is not supported: use an encoder, decoder or "
        "encoder-decoder of text"
    )


def _class_name(mapping: Any, kind: type) -> str:
    model_class = mapping.get(kind, None)
    return str(getattr(model_class[0] if isinstance(model_class, tuple) else model_class, "__name__", ""))


def _weights(folder: ModelFolder, shape: Shape, auto: Any, options: dict[str, Any]) -> Any:
    """Load the model; raises DataError if a weight is missing in the files."""
    # always explicit, because config.json could name a kernel to download
    for attention in ("sdpa", "eager"):
        try:
            model, report = auto.from_pretrained(
                folder.path,
                attn_implementation=attention,
                use_safetensors=True,
                output_loading_info=True,
                **LOCAL_ONLY,
                **options,
            )
            break
        except Exception as error:
            if attention == "eager" or "attention" not in str(error):
                raise
    missing = [key for key in sorted(report["missing_keys"]) if ".pooler." not in f".{key}"]
    if missing:
        raise DataError(
            f"{folder.name}: {len(missing)} weights of the model are missing, such as {missing[0]}: the "
            f"files are damaged, or not those of {CONFIG} ({shape})"
        )
    return model.eval()


def _tokenizer(folder: ModelFolder, model: Any) -> Any:
    try:
        tokenizer = transformers().AutoTokenizer.from_pretrained(folder.path, **LOCAL_ONLY)
    except ImportError:
        raise
    except Exception as error:
        raise MissingInputError(f"{folder.name}: cannot read the tokenizer: {error_line(error)}") from error
    if not tokenizer or len(tokenizer) <= len(tokenizer.all_special_ids):
        # some classes build an empty vocabulary if its file is missing
        raise MissingInputError(f"{folder.name}: no tokenizer: save the tokenizer beside the model")
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows and max(tokenizer.get_vocab().values()) >= rows:
        raise DataError(
            f"{folder.name}: the tokenizer has {len(tokenizer):,} pieces, but the model has {rows:,} "
            "embeddings: tokenizer and model do not match"
        )
    return tokenizer


def _refusal(folder: ModelFolder, error: BaseException) -> BaseException:
    """Convert an error of transformers to one line; attnkit's own and out-of-memory errors are unchanged."""
    if isinstance(error, AttnkitError) or out_of_memory(error):
        return error
    if isinstance(error, ImportError):
        return UnavailableError(f"{folder.name}: {error_line(error)}")
    if isinstance(error, OSError) and error.errno is not None:  # an I/O error, not an error of transformers
        return input_error(error, Path(error.filename or folder.path))
    kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return DataError(f"{folder.name}: cannot be opened: {kind}{error_line(error)}")


def error_line(error: BaseException, length: int = 200) -> str:
    """Return the first line of an error's message, truncated to `length` characters; without a message, its class."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
    return text if len(text) <= length else text[: length - 3] + "..."


def _limit(model: Any, tokenizer: Any) -> int | None:
    config = model.config.get_text_config()
    if not isinstance(tokenizer.model_max_length, int | float):
        raise TypeError(f"model_max_length should be a number: {tokenizer.model_max_length!r:.60}")
    tables = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    limits = [value - _reserved(model, value) for value in tables if isinstance(value, int) and value > 0]
    limit = min(tokenizer.model_max_length, *limits, NO_LIMIT)
    return int(limit) if limit < NO_LIMIT else None


def _reserved(model: Any, rows: int) -> int:
    """Return the number of positions reserved for padding in RoBERTa-like models, which count from padding_idx + 1."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, torch.nn.Embedding):
            reserves = module.padding_idx is not None and module.num_embeddings == rows
            return (module.padding_idx or 0) + 1 if reserves else 0
    return 0


def _digest(files: list[Path]) -> str | None:
    """Compute the SHA-256 of the concatenated files; None if they are missing or larger than `MAX_HASHED_BYTES`."""
    existing = [file for file in files if file.is_file()]
    if not existing or sum(file.stat().st_size for file in existing) > MAX_HASHED_BYTES:
        return None
    digest = hashlib.sha256()
    for path in existing:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
