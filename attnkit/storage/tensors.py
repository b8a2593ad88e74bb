"""Files of named tensors in the safetensors format, written as a stream and validated when read.

safetensors reads, but its `save_file` (0.8) is not used: it hides the system's error in a text, leaves a temporary
file behind after a kill, and makes files that other users cannot read.
Format: https://github.com/huggingface/safetensors (8 bytes of header length, a JSON header, data).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from attnkit.errors import DataError
from attnkit.storage.files import DISK, check_file

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def unique(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without aliases of the same memory (tied weights); the first name stays."""
    seen = set()
    first = {}
    for name, tensor in tensors.items():
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() == 0 or tensor.is_meta or memory not in seen:
            first[name] = tensor
            seen.add(memory)
    return first


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with NaN or infinity, or None."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Write tensors (any device, any strides, with or without shared memory) in place and sync the file.

    The bytes depend on names and values alone, not on the order of the mapping.

    Returns:
        The size in bytes and the SHA-256 in hexadecimal.

    Raises:
        TypeError: The format has no such type of tensor (complex, quantized, sparse).
        OSError: Writing failed.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header = _header(tensors, names, metadata or {})
    digest = hashlib.sha256(header)
    size = len(header)
    with DISK.open(path) as file:
        DISK.write(file, header)
        for name in names:
            # no copy if the tensor is already contiguous in main memory
            flat = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            data = flat.numpy().data
            DISK.write(file, data)
            digest.update(data)
            size += len(data)
        DISK.fsync(file)
    return size, digest.hexdigest()


def _header(tensors: Mapping[str, Tensor], names: Iterable[str], metadata: Mapping[str, str]) -> bytes:
    """Return the length and the JSON of the header, padded to a multiple of eight bytes."""
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or name == "__metadata__":
            raise TypeError(f"{name}: {tensor.dtype} {tensor.layout} cannot be saved")
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read(path: Path, *, prefix: str = "", widen: bool = False) -> dict[str, Tensor]:
    """Read the tensors whose names begin with `prefix` into main memory; `widen` converts float16 to float32.

    The caller must verify the hash of the file first.

    Raises:
        MissingInputError: The file does not exist.
        DataError: The file is damaged or malicious, or a tensor has NaN or infinity.
    """
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            # safetensors maps the file: without a copy, later changes of the file would change the tensors
            tensors = {name: file.get_tensor(name).clone() for name in names}
        if widen:
            tensors = {n: x.float() if x.dtype == torch.half else x for n, x in tensors.items()}
        bad = not_finite(tensors)
    except (SafetensorError, OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path}: not a valid safetensors file: {reason}") from error
    if bad is not None:
        raise DataError(f"{path}: tensor {bad} holds NaN or infinity")
    return tensors


def check(path: Path, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Raise DataError, naming a tensor, unless names, types and shapes in a file equal those of `like`."""
    if missing := sorted(like.keys() - tensors.keys()):
        raise DataError(f"{path}: tensor {missing[0]} is missing ({len(missing)} missing in all)")
    if extra := sorted(tensors.keys() - like.keys()):
        raise DataError(f"{path}: tensor {extra[0]} is unexpected ({len(extra)} unexpected in all)")
    for name, tensor in tensors.items():
        if tensor.dtype != like[name].dtype or tensor.shape != like[name].shape:
            raise DataError(
                f"{path}: tensor {name} must be {_description(like[name])}, got {_description(tensor)}; "
                "the file belongs to another model"
            )


def _description(tensor: Tensor) -> str:
    """Return type and shape, such as float32 [2, 3]."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
