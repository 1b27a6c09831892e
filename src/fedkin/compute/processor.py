"""What the processor says of itself. Rules may look at it, never at a clock: it is the same in every run on a machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
USUAL = 2**22
"""Where the system does not tell (it is not Linux)."""


@cache
def cache_per_core(caches: Path = CACHES) -> int:
    """Bytes of the largest cache, divided by the cores that share it."""
    found = []
    for index in sorted(caches.glob("index*")):
        try:
            size, sharers = ((index / name).read_text().strip() for name in ("size", "shared_cpu_list"))
            found.append(_bytes(size) // _count(sharers))
        except (OSError, ValueError):
            continue
    return max(found, default=USUAL)


def _bytes(size: str) -> int:
    """Of "32768K" or "32M".

    >>> _bytes("32768K")
    33554432
    """
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1:], 0)
    return int(size[:-1]) * scale if scale else int(size)


def _count(cores: str) -> int:
    """Of "0-3,8".

    >>> _count("0-3,8")
    5
    """
    ends = [part.partition("-") for part in cores.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
