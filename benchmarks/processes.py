"""What a process and all that it started take: processor seconds and memory, from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and all its descendants that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                children.setdefault(_after_name(int(entry.name))[1], []).append(int(entry.name))
    found, rest = [], [pid]
    while rest:
        found.append(rest.pop())
        rest += children.get(found[-1], [])
    return found


def cpu_seconds(pid: int) -> float:
    """Processor seconds of the family so far, those of descendants that have ended and were waited for included."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            total += sum(_after_name(member)[11:15])
    return total / TICK


def memory(pid: int) -> int:
    """Bytes of the family's own memory now, shared pages once; files that are mapped (the data) are left out."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{member}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += 1024 * int(line.split()[1])
    return total


def _after_name(pid: int) -> list[int]:
    """The numbers of /proc/PID/stat after the name in brackets: 0 for the state, then the parent and what follows it."""
    _, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [0, *map(int, numbers)]
