"""What every benchmark shares: its options, cases with a time limit, interleaved repeats, medians, the machine, a JSON file, bars."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
FRESH = multiprocessing.get_context("spawn")
"""New interpreters. Never fork: a child of a process whose OpenMP threads have started waits for them for ever."""
LOAD = os.getloadavg()[0]
"""When the benchmark began."""
LATE: list[dict[str, Any]] = []
"""The cases that were given up."""


def parser(name: str, description: str | None, quick: str) -> argparse.ArgumentParser:
    """Options `--quick` (what it leaves out), `--json`, `--plot` and `--limit`; see `parsed`."""
    made = argparse.ArgumentParser(prog=name, description=description, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--quick", action="store_true", help=f"{quick}; writes no files unless asked to")
    made.add_argument("--json", type=Path, help=f"where to write the numbers (default: benchmarks/{name}.json)")
    made.add_argument("--plot", type=Path, help=f"where to draw them (default: docs/images/{name}.png)")
    made.add_argument("--limit", type=float, help="seconds after which a case is given up (default: 1800, quick: 120)")
    return made


def parsed(made: argparse.ArgumentParser) -> argparse.Namespace:
    """The options; the files of a whole run have their place, a quick one leaves them alone."""
    options = made.parse_args()
    options.limit = options.limit or (120 if options.quick else 1800)
    if not options.quick:
        options.json = options.json or ROOT / "benchmarks" / f"{made.prog}.json"
        options.plot = options.plot or ROOT / "docs" / "images" / f"{made.prog}.png"
    begin()
    return options


def begin() -> None:
    """Warn of a busy machine; and when this process is ended, let it end the cases it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    if LOAD > 1:
        print(f"the load of this machine is {LOAD:.1f}: quiet it below 1, or read ratios only", file=sys.stderr)


class Late(Exception):
    """A case took longer than it may."""


def within(limit: float, function: Callable[..., Any], *args: Any) -> Any:
    """What `function` of a module answers in a fresh process of its own; `Late` after so many seconds.

    What a late one has started (workers, Ray) belongs to its session and is ended with it.
    """
    ours, theirs = FRESH.Pipe()
    process = FRESH.Process(target=_answer, args=(theirs, function, args))
    process.start()
    theirs.close()
    try:
        if not ours.poll(limit):
            raise Late
        answer, fault = ours.recv()
        process.join(10)
    except EOFError:
        answer, fault = None, f"{function.__name__} ended without an answer"
    finally:
        if process.is_alive():
            _end(process)
    if fault:
        raise RuntimeError(fault)
    return answer


def _answer(out: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.setsid()
    try:
        out.send((function(*args), None))
    except Exception:
        out.send((None, traceback.format_exc()))


def _end(process: SpawnProcess) -> None:
    """End a process and all of its session, politely first."""
    assert process.pid is not None
    for way in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, way)
            process.join(2)
    process.kill()  # should it not have come to a session of its own
    process.join()


def case(name: str, limit: float, function: Callable[..., Any], *args: Any) -> Any:
    """`within` the limit, or None: that the case was given up is printed, and written into the JSON file."""
    try:
        return within(limit, function, *args)
    except Late:
        print(f"{name}: given up after {limit:g} s", flush=True)
        LATE.append({"case": name, "limit_seconds": limit})
        return None


def medians(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds per task: one warm-up each, then interleaved repeats, so that a busy machine disturbs all alike."""
    times = interleave({name: lambda task=task: seconds(task) for name, task in tasks.items()}, repeats)
    return {name: statistics.median(values) for name, values in times.items()}


def interleave(tasks: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """What tasks that clock themselves answer, in turn; the first answer of each is the warm-up and left out."""
    answers: dict[str, list[float]] = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            value = task()
            if repeat:
                answers[name].append(value)
    return answers


def machine() -> dict[str, Any]:
    """The processor as it says it is and as it was measured, its cores, torch, and the load when the benchmark began."""
    return {
        **described(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        **_measured(),
        "load": LOAD,
    }


VECTORS = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")


def described() -> dict[str, Any]:
    """The processor's name and vector units, from /proc/cpuinfo."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    return {
        "processor": facts.get("model name", os.uname().machine),
        "vector_units": [unit for unit in VECTORS if unit in flags],
    }


@cache
def _measured() -> dict[str, float]:
    return within(120, speeds)


def speeds() -> dict[str, float]:
    """Best of five on all cores: a product of two 2,048² float32 matrices, and a copy of 128 MiB (read and written)."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    a, b = torch.randn(2, 2048, 2048)
    source = torch.randn(2**25)
    target = torch.empty_like(source)
    product = min(seconds(lambda: a @ b) for _ in range(5))
    copied = min(seconds(lambda: target.copy_(source)) for _ in range(5))
    return {"sgemm_gflops": 2 * 2048**3 / product / 1e9, "copy_gb_per_second": 2 * source.nbytes / copied / 1e9}


Place = tuple[Any, str, Callable[..., str]]
"""A function by its owner and name, and the part of the work it belongs to, said from its arguments."""


@contextlib.contextmanager
def watched(
    places: Iterable[Place], spent: dict[str, list[float]], clocks: frozenset[str] = frozenset()
) -> Iterator[None]:
    """List the processor seconds of every call of these functions, by part; inner parts are not counted twice.

    `clocks` are names of functions whose seconds are those of the clock (they wait for the disk).
    """
    inner = [0.0]

    def timed(function: Callable[..., Any], part: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            outer, inner[0] = inner[0], 0.0
            start, clock = time.process_time(), time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                whole = time.process_time() - start
                waits = getattr(function, "__name__", "") in clocks
                spent[part(*args, **options)].append(time.perf_counter() - clock if waits else whole - inner[0])
                inner[0] = outer + whole

        return call

    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, part in places:
        setattr(owner, name, timed(getattr(owner, name), part))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


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
    found = {"machine": machine(), **facts, "late": LATE, "records": records}
    path.write_text(json.dumps(found, indent=1) + "\n")
