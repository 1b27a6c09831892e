"""Numbers as people read them."""

from __future__ import annotations

import math


def human_bytes(count: float) -> str:
    """Bytes for people.

    >>> [human_bytes(n) for n in (0, 999, 1500, 2.5e6, 3e12)]
    ['0 B', '999 B', '1.5 kB', '2.5 MB', '3.0 TB']
    """
    if not math.isfinite(count):
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """A time in one unit.

    >>> [duration(s) for s in (3, 75, 4000, 200000)]
    ['3 s', '1.2 min', '1.1 h', '2.3 d']
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{max(1, round(seconds))} s"
