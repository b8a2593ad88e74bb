"""Opening a Hugging Face model: its kind, weights and tokenizer, and every refusal in one line.

Only the public interface of transformers is used.  Code of a model's repository is never run and
pickled weights are never read: such models are refused.
"""

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
"""What a model is, in a recipe's words; a decoder is a causal language model."""

OLDEST = 5
"""First major version of transformers that fits."""
TYPES = ("float32", "bfloat16", "float16", "auto")
"""Number types; auto is the one that the weights were saved in."""
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Nothing is downloaded or run while a folder is opened."""
UNSET = 10**9
"""A tokenizer that knows no limit says a number beyond all texts."""
HASHED = 1 << 30
"""Bytes of weights that are hashed, at most: about a second."""


@dataclass(frozen=True)
class Pretrained:
    """A model in evaluation mode, with its tokenizer."""

    name: str
    """Directory or hub name, as it was given."""
    shape: Shape
    model: Any
    """A PreTrainedModel; with a language modelling head unless an encoder."""
    tokenizer: Any
    """A PreTrainedTokenizerBase."""
    device: torch.device
    limit: int | None
    """Most tokens that a side may have, special ones included; None where there is no limit."""
    path: Path
    """The directory of its files."""
    revision: str | None = None
    """The hub's commit."""

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Inside, attention returns its weights; that of transformers is plain products then."""
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
        """Hashes of weights (where they are below 1 GiB) and tokenizer, revision, versions."""
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
    """Open a local directory, or where there is none a model of the hub.

    The network is used only for a hub name, and not when `offline`, ATTNKIT_OFFLINE or HF_HUB_OFFLINE says so.

    Args:
        name: directory, or OWNER/MODEL.
        device: auto takes a GPU where there is one.
        dtype: float32, bfloat16, float16, or auto: as saved.
        offline: forbid downloads.

    Raises:
        UnavailableError: transformers, another package that the model needs, the device or the network is not there.
        MissingInputError: there is no such model, or a part of it is missing.
        DataError: its files are damaged, unknown, pickled, or need code of their own.
        UsageError: an unknown dtype.
    """
    require_transformers()
    if dtype not in TYPES:
        raise UsageError(f"dtype {dtype}: {hint(dtype, TYPES)}")
    chosen = pick_device(device)
    place = model_folder(str(name), offline=offline)
    try:
        return _opened(place, chosen, dtype)
    except BaseException as error:  # of libraries that are not ours; Rust's panics are no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _refusal(place, error) from error


def _opened(place: ModelFolder, chosen: str, dtype: str) -> Pretrained:
    """The model in a folder; raises whatever transformers does."""
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
    """Raise UnavailableError where transformers is missing or too old."""
    advice = f"Hugging Face models need transformers >= {OLDEST}: pip install 'attnkit[hf]'"
    try:
        found = version("transformers")
    except PackageNotFoundError:
        raise UnavailableError(advice) from None
    if int(found.split(".")[0]) < OLDEST:
        raise UnavailableError(f"{advice} (here: {found})")


class PretrainedConfig(json_files.Schema):
    """What is read of config.json before transformers reads it."""

    model_type: str
    architectures: list[str] | None = None
    auto_map: dict[str, Any] | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None


def _settings(place: ModelFolder) -> PretrainedConfig:
    """config.json, refused where transformers itself has no such model."""
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
    """What the model is, and the class that opens it."""
    read = _settings(place)
    library = transformers()
    try:
        config = library.AutoConfig.from_pretrained(place.path, **LOCAL)
    except Exception as error:
        raise DataError(f"{place.name}: {CONFIG} is malformed: {one_line(error)}") from error
    layers = getattr(config, "num_hidden_layers", 1)
    if not isinstance(layers, int) or layers < 1:  # transformers builds a model of no layers
        raise DataError(f"{place.name}: {CONFIG} is malformed: a model of {layers} layers")
    kind, named = type(config), (read.architectures or [""])[0]
    causal = library.MODEL_FOR_CAUSAL_LM_MAPPING
    masked = library.MODEL_FOR_MASKED_LM_MAPPING
    encodes = library.MODEL_FOR_TEXT_ENCODING_MAPPING
    if named.endswith("EncoderModel") and named == _class_name(encodes, kind):
        return "encoder", library.AutoModelForTextEncoding
    if config.is_encoder_decoder and kind in library.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return "encoder-decoder", library.AutoModelForSeq2SeqLM
    if kind in causal:  # some kinds come in both forms
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
    """The model, every weight of it from the files."""
    # named in any case: config.json could name a kernel to download
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
    """The tokenizer; its ids must have embeddings."""
    try:
        tokenizer = transformers().AutoTokenizer.from_pretrained(place.path, **LOCAL)
    except ImportError:
        raise
    except Exception as error:
        raise MissingInputError(f"{place.name}: no tokenizer that can be read: {one_line(error)}") from error
    if not tokenizer or len(tokenizer) <= len(tokenizer.all_special_ids):
        # where no file of a vocabulary is there, some classes make an empty one
        raise MissingInputError(f"{place.name}: no tokenizer: save one beside the model")
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows and max(tokenizer.get_vocab().values()) >= rows:
        raise DataError(
            f"{place.name}: the tokenizer has {len(tokenizer):,} pieces, but the model embeds "
            f"{rows:,}: they do not belong together"
        )
    return tokenizer


def _refusal(place: ModelFolder, error: BaseException) -> BaseException:
    """An error of transformers in one line; one of attnkit or of memory stays."""
    if isinstance(error, AttnkitError) or out_of_memory(error):
        return error
    if isinstance(error, ImportError):
        return UnavailableError(f"{place.name}: {one_line(error)}")
    if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of transformers
        return input_error(error, Path(error.filename or place.path))
    what = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return DataError(f"{place.name}: cannot be opened: {what}{one_line(error)}")


def one_line(error: BaseException, longest: int = 200) -> str:
    """The first line of an error's message, cut to `longest` characters; else its class."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _limit(model: Any, tokenizer: Any) -> int | None:
    """Most tokens of a side."""
    config = model.config.get_text_config()
    if not isinstance(tokenizer.model_max_length, int | float):
        raise TypeError(f"model_max_length should be a number: {tokenizer.model_max_length!r:.60}")
    tables = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    limits = [value - _reserved(model, value) for value in tables if isinstance(value, int) and value > 0]
    least = min(tokenizer.model_max_length, *limits, UNSET)
    return int(least) if least < UNSET else None


def _reserved(model: Any, rows: int) -> int:
    """Positions that tables of the RoBERTa family keep for padding: counting starts behind it."""
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, torch.nn.Embedding):
            padded = part.padding_idx is not None and part.num_embeddings == rows
            return (part.padding_idx or 0) + 1 if padded else 0
    return 0


def _digest(files: list[Path]) -> str | None:
    """SHA-256 of the files one after the other; None where they are missing or too large."""
    there = [file for file in files if file.is_file()]
    if not there or sum(file.stat().st_size for file in there) > HASHED:
        return None
    digest = hashlib.sha256()
    for file in there:
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: digest)
    return digest.hexdigest()
