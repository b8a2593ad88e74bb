"""Where models compute, and with how many threads."""

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


def threads_each(jobs: int) -> int:
    """Threads of each of so many processes: an equal share of torch's here, at least one.

    torch takes those of the machine, or OMP_NUM_THREADS.
    """
    import torch

    return max(1, torch.get_num_threads() // jobs)


def sharing(jobs: int) -> str:
    """How so many runs share the machine, in words."""
    threads = threads_each(jobs)
    return (
        f"{jobs} run{'s' * (jobs != 1)} at a time, {threads} thread{'s' * (threads != 1)}"
        f"{' each' if jobs > 1 else ''}"
    )
