"""The most memory that a part of the program needed: of a device, or of this process on Linux."""

from pathlib import Path

import torch

from attnkit.memory import release_freed_memory


def reset_peak_memory(device: str) -> int | None:
    """Begin to watch the peak; the bytes in use now, or None where they cannot be known.

    The highest resident size that a process reports is that of its whole life; Linux lowers it to
    what is in use now on request, where this is permitted.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    if device != "cpu":
        return None
    release_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak, VmHWM
    except OSError:
        return None
    return process_memory("VmRSS")


def peak_memory(device: str) -> int | None:
    """Most bytes in use since `reset_peak_memory`: tensors on a GPU, else this process's memory."""
    cuda = device.startswith("cuda")
    return torch.cuda.max_memory_allocated(device) if cuda else process_memory("VmHWM")


def process_memory(name: str) -> int | None:
    """A number of bytes from what Linux tells of this process."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith(f"{name}:")), "")
    return int(line.split()[1]) * 1024 if line else None
