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

OLDEST = 5
"""Minimum major version of transformers."""
TYPES = ("float32", "bfloat16", "float16", "auto")
"""Dtypes; auto is the dtype of the saved weights."""
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Options of `from_pretrained` that forbid downloads and code from the repository."""
UNSET = 10**9
"""Threshold of `model_max_length` above which a tokenizer has no limit."""
HASHED = 1 << 30
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
        before = self.model.config._attn_implementation
        own = before == surgery.IMPLEMENTATION
        with quiet():
            self.model.set_attn_implementation(surgery.WITH_MAPS if own else "eager")
        try:
            yield
        finally:
            with quiet():
                self.model.set_attn_implementation(before)

    @cached_property
    def facts(self) -> dict[str, str]:
        """Hashes of the weights (up to `HASHED` bytes) and tokenizer, revision, and versions of the libraries."""
        found = {
            "weights": _digest(sorted(self.path.glob("model*.safetensors")) + surgery.files(self.path)),
            "tokenizer": _digest([self.path / "tokenizer.json"]),
            "revision": self.revision,
            "attnkit": __version__,
            "torch": torch.__version__,
            "transformers": transformers().__version__,
        }
        return {key: value for key, value in found.items() if value}


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
    if dtype not in TYPES:
        raise UsageError(f"dtype {dtype}: {hint(dtype, TYPES)}")
    chosen = pick_device(device)
    place = model_folder(str(name), offline=offline)
    try:
        return _opened(place, chosen, dtype)
    except BaseException as error:  # of other libraries; a Rust panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _refusal(place, error) from error


def _opened(place: ModelFolder, chosen: str, dtype: str) -> Pretrained:
    """Open the model of a folder; errors of transformers are not converted."""
    with quiet():
        shape, auto = _kind(place)
        options: dict[str, Any] = {"dtype": "auto" if dtype == "auto" else getattr(torch, dtype)}
        converted = surgery.is_converted(place.path)
        if converted:
            options["variant"] = surgery.VARIANT
        model = _weights(place, shape, auto, options).to(chosen)
        tokenizer = _tokenizer(place, model)
    limit = _limit(model, tokenizer)
    if converted and (most := surgery.restore(model, place.path)) is not None:
        limit = most if limit is None else min(limit, most)
    return Pretrained(place.name, shape, model, tokenizer, torch.device(chosen), limit, place.path, place.revision)


def require_transformers() -> None:
    """Raise UnavailableError if transformers is missing or too old."""
    advice = f"Hugging Face models need transformers >= {OLDEST}: pip install 'attnkit[hf]'"
    try:
        found = version("transformers")
    except PackageNotFoundError:
        raise UnavailableError(advice) from None
    if int(found.split(".")[0]) < OLDEST:
        raise UnavailableError(f"{advice} (here: {found})")


class PretrainedConfig(json_files.Schema):
    """Fields of config.json that are checked before transformers reads it."""

    model_type: str
    architectures: list[str] | None = None
    auto_map: dict[str, Any] | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None


def _settings(place: ModelFolder) -> PretrainedConfig:
    """Read config.json; raises DataError if transformers itself does not implement the model type."""
    settings = json_files.read(place.path / CONFIG, PretrainedConfig)
    known, kind = transformers().CONFIG_MAPPING, settings.model_type
    if kind in known:
        return settings
    if settings.auto_map:
        raise DataError(
            f"{place.name}: a model of type {kind!r} needs code from its repository, which attnkit "
            "never runs: use a model that transformers itself has"
        )
    version_here = transformers().__version__
    raise DataError(
        f"{place.name}: transformers {version_here} knows no model of type {kind!r}"
        f"; {hint(kind, known, 'update transformers?')}"
    )


def _kind(place: ModelFolder) -> tuple[Shape, Any]:
    """Determine the shape of the model and the auto class that opens it."""
    read = _settings(place)
    library = transformers()
    try:
        config = library.AutoConfig.from_pretrained(place.path, **LOCAL)
    except Exception as error:
        raise DataError(f"{place.name}: {CONFIG} is malformed: {one_line(error)}") from error
    layers = getattr(config, "num_hidden_layers", 1)
    if not isinstance(layers, int) or layers < 1:  # transformers accepts a model without layers
        raise DataError(f"{place.name}: {CONFIG} is malformed: a model of {layers} layers")
    kind, named = type(config), (read.architectures or [""])[0]
    causal = library.MODEL_FOR_CAUSAL_LM_MAPPING
    masked = library.MODEL_FOR_MASKED_LM_MAPPING
    encodes = library.MODEL_FOR_TEXT_ENCODING_MAPPING
    if named.endswith("EncoderModel") and named == _class_name(encodes, kind):
        return "encoder", library.AutoModelForTextEncoding
    if config.is_encoder_decoder and kind in library.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return "encoder-decoder", library.AutoModelForSeq2SeqLM
    if kind in causal:  # some model types are both causal and masked
        only_causal = named == _class_name(causal, kind) != _class_name(masked, kind)
        flags = (getattr(config, flag, False) for flag in ("is_decoder", "causal"))
        if kind not in masked or only_causal or any(flags):
            return "decoder", library.AutoModelForCausalLM
    if kind in masked or kind in encodes:
        return "encoder", library.AutoModel
    raise DataError(
        f"{place.name}: a {read.model_type} model reads no text, or is of a kind that is not "
        "supported: encoders, decoders and encoder-decoders of text are"
    )


def _class_name(mapping: Any, kind: type) -> str:
    found = mapping.get(kind, None)
    return str(getattr(found[0] if isinstance(found, tuple) else found, "__name__", ""))


def _weights(place: ModelFolder, shape: Shape, auto: Any, options: dict[str, Any]) -> Any:
    """Load the model; raises DataError if a weight is missing in the files."""
    # always explicit, because config.json could name a kernel to download
    for attention in ("sdpa", "eager"):
        try:
            model, report = auto.from_pretrained(
                place.path,
                attn_implementation=attention,
                use_safetensors=True,
                output_loading_info=True,
                **LOCAL,
                **options,
            )
            break
        except Exception as error:
            if attention == "eager" or "attention" not in str(error):
                raise
    missing = [key for key in sorted(report["missing_keys"]) if ".pooler." not in f".{key}"]
    if missing:
        raise DataError(
            f"{place.name}: its files lack {len(missing)} of the model's weights, such as "
            f"{missing[0]}: they are damaged, or of another kind than {CONFIG} says ({shape})"
        )
    return model.eval()


def _tokenizer(place: ModelFolder, model: Any) -> Any:
    try:
        tokenizer = transformers().AutoTokenizer.from_pretrained(place.path, **LOCAL)
    except ImportError:
        raise
    except Exception as error:
        raise MissingInputError(f"{place.name}: no tokenizer that can be read: {one_line(error)}") from error
    if not tokenizer or len(tokenizer) <= len(tokenizer.all_special_ids):
        # some classes build an empty vocabulary if its file is missing
        raise MissingInputError(f"{place.name}: no tokenizer: save one beside the model")
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows and max(tokenizer.get_vocab().values()) >= rows:
        raise DataError(
            f"{place.name}: the tokenizer has {len(tokenizer):,} pieces, but the model embeds "
            f"{rows:,}: they do not belong together"
        )
    return tokenizer


def _refusal(place: ModelFolder, error: BaseException) -> BaseException:
    """Convert an error of transformers to one line; attnkit's own and out-of-memory errors are unchanged."""
    if isinstance(error, AttnkitError) or out_of_memory(error):
        return error
    if isinstance(error, ImportError):
        return UnavailableError(f"{place.name}: {one_line(error)}")
    if isinstance(error, OSError) and error.errno is not None:  # an I/O error, not an error of transformers
        return input_error(error, Path(error.filename or place.path))
    what = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return DataError(f"{place.name}: cannot be opened: {what}{one_line(error)}")


def one_line(error: BaseException, longest: int = 200) -> str:
    """Return the first line of an error's message, truncated to `longest` characters; without a message, its class."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _limit(model: Any, tokenizer: Any) -> int | None:
    config = model.config.get_text_config()
    if not isinstance(tokenizer.model_max_length, int | float):
        raise TypeError(f"model_max_length should be a number: {tokenizer.model_max_length!r:.60}")
    tables = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    limits = [value - _reserved(model, value) for value in tables if isinstance(value, int) and value > 0]
    least = min(tokenizer.model_max_length, *limits, UNSET)
    return int(least) if least < UNSET else None


def _reserved(model: Any, rows: int) -> int:
    """Return the number of positions reserved for padding in RoBERTa-like models, which count from padding_idx + 1."""
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, torch.nn.Embedding):
            padded = part.padding_idx is not None and part.num_embeddings == rows
            return (part.padding_idx or 0) + 1 if padded else 0
    return 0


def _digest(files: list[Path]) -> str | None:
    """Compute the SHA-256 of the concatenated files; None if they are missing or larger than `HASHED`."""
    there = [file for file in files if file.is_file()]
    if not there or sum(file.stat().st_size for file in there) > HASHED:
        return None
    digest = hashlib.sha256()
    for file in there:
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()
