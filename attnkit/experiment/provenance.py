"""Provenance of a run: the machine and the version of attnkit's code."""

import hashlib
import os
import platform
from functools import cache
from pathlib import Path

import attnkit

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""CPU flags that affect the speed of matrix products."""


def machine(device: str = "cpu") -> str:
    """Describe the machine without its name: GPU of `device`, number of cores, kind of CPU, memory."""
    text = ""
    if (info := Path("/proc/cpuinfo")).exists():
        text = info.read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    server = any(word in fields.get("model name", "") for word in ("EPYC", "Xeon"))
    kind = f"{platform.machine().replace('_', '-')} {'server ' if server else ''}CPU"
    features = ", ".join(flag for flag in FEATURES if flag in flags) or "no vector extensions known"
    features += "" if any(flag.startswith("amx") for flag in flags) else ", no amx"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpu = f"{cores} cores of an {kind} ({features}), {memory:.0f} GiB"
    return f"{gpu(device)}, {cpu}" if device.startswith("cuda") else cpu


def gpu(device: str) -> str:
    """Describe a CUDA device."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda})"


@cache
def code_digest() -> str:
    """Return the SHA-256 of attnkit's modules, equal for runs trained by the same code."""
    root, digest = Path(attnkit.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
