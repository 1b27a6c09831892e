"""What every benchmark shares: its options, interleaved repeats, medians, the machine, a JSON file, a plot of bars."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]


def parser(name: str, description: str | None, quick: str) -> argparse.ArgumentParser:
    """Options `--quick` (what it leaves out), `--json` and `--plot`; see `parsed`."""
    made = argparse.ArgumentParser(prog=name, description=description, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--quick", action="store_true", help=f"{quick}; writes no files unless asked to")
    made.add_argument("--json", type=Path, help=f"where to write the numbers (default: benchmarks/{name}.json)")
    made.add_argument("--plot", type=Path, help=f"where to draw them (default: docs/images/{name}.png)")
    return made


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The options; the files of a whole run have their place, a quick one leaves them alone."""
    options = made.parse_args()
    if not options.quick:
        options.json = options.json or ROOT / "benchmarks" / f"{made.prog}.json"
        options.plot = options.plot or ROOT / "docs" / "images" / f"{made.prog}.png"
    return options


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


def bars(
    path: Path | None,
    title: str,
    label: str,
    groups: list[str],
    series: dict[str, list[float]],
    goal: float | None = None,
) -> None:
    """Draw a group of bars for every name in `groups`, one bar of it per series; a dashed line at the goal."""
    if path is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    ax = figure.subplots()
    width = 0.8 / len(series)
    for place, (name, heights) in enumerate(series.items()):
        left = [at + width * (place - (len(series) - 1) / 2) for at in range(len(groups))]
        drawn = ax.bar(left, heights, 0.92 * width, label=name)
        ax.bar_label(drawn, [f"{height:.3g}" for height in heights], fontsize=7)
    if goal is not None:
        ax.axhline(goal, color="grey", linewidth=1, linestyle="--")
    ax.set_xticks(range(len(groups)), groups, fontsize=8)
    ax.set(ylabel=label, title=title)
    if len(series) > 1:
        ax.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def write(path: Path | None, records: list[dict[str, Any]], **facts: Any) -> None:
    if path is None:
        return
    path.write_text(json.dumps({"machine": machine(), **facts, "records": records}, indent=1) + "\n")
