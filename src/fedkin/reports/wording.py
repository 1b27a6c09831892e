"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedkin.task import Task


def amount(value: float, task: Task) -> str:
    """A metric in words: 93.1 %, or 0.0412."""
    if not math.isfinite(value):
        return "unknown"
    return f"{100 * value:.1f} %" if task.metric == "accuracy" else f"{value:.4g}"


def difference(value: float, task: Task) -> str:
    """A signed difference: +2.9 points, or −0.0041."""
    if not math.isfinite(value):
        return "unknown"
    shown = f"{100 * value:+.1f} points" if task.metric == "accuracy" else f"{value:+.3g}"
    return shown.replace("-", "−")


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
