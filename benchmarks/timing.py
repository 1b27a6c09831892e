"""What every benchmark shares: interleaved repeats, medians, the machine, a JSON file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def medians(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds per task: one warm-up each, then interleaved repeats, so that a busy machine disturbs all alike."""

    def clocked(task: Callable[[], object]) -> float:
        start = time.perf_counter()
        task()
        return time.perf_counter() - start

    seconds = interleave({name: lambda task=task: clocked(task) for name, task in tasks.items()}, repeats)
    return {name: statistics.median(times) for name, times in seconds.items()}


def interleave(tasks: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """What tasks that clock themselves answer, in turn; the first answer of each is the warm-up and left out."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            value = task()
            if repeat:
                seconds[name].append(value)
    return seconds


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }


def write(path: Path, records: list[dict[str, Any]], **facts: Any) -> None:
    path.write_text(json.dumps({"machine": machine(), **facts, "records": records}, indent=1) + "\n")
