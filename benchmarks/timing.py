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
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "load": os.getloadavg()[0],
    }


def write(path: Path, records: list[dict[str, Any]], **facts: Any) -> None:
    path.write_text(json.dumps({"machine": machine(), **facts, "records": records}, indent=1) + "\n")
