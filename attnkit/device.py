"""Where models compute."""

from attnkit.errors import UnavailableError


def pick_device(name: str) -> str:
    """The device that `name` means here; auto is the first GPU, else the CPU.

    Raises:
        UnavailableError: this machine has no such device.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UnavailableError(f"device {name!r} is not available here: use cpu or auto") from error
    return name
