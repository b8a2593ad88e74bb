"""Bytes and durations as short texts."""

import math


def amount(size: float) -> str:
    """Return bytes as a text with three digits and units of powers of 1000: 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def duration(seconds: float) -> str:
    """Return a duration as a text: 9s, 1m12s, 3h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def short_duration(seconds: float) -> str:
    """Return a short time as a text with three digits: 1.20 ms."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    unit = next((unit for unit, size in units.items() if seconds >= size), "ns")
    value = seconds / units.get(unit, 1e-9)
    return f"{value:,.{max(0, 2 - math.floor(math.log10(max(value, 1e-9))))}f} {unit}"


def age(seconds: float) -> str:
    """Return a time in its largest unit, rounded down: 5 min."""
    units = (("y", 365 * 86400), ("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for unit, length in units:
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return "0 s"
