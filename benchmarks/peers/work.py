"""The work every worker does, and how it talks with the driver. Needs numpy only, which every peer's environment has.

A worker is a process: `python <peer>_worker.py MODEL CLIENTS DIRECTORY`. It says `{"ready": …}` on its standard output, then
answers every line `round` with `{"seconds": s, "change": c}`, where c is the mean absolute change of the global model's
parameters in that round: a worker that skips work changes less. `stop`, or the end of the input, ends it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import numpy as np

STEPS, BATCH, LR, SHAPE, CLASSES = 20, 20, 0.01, (1, 28, 28), 10
SAMPLES = STEPS * BATCH
FOREVER = 1_000_000
"""Rounds asked of a framework that owns its loop; the driver stops it before."""


class Stop(Exception):
    """The driver has had its rounds."""


class Job(NamedTuple):
    """What to do: `images` (K, n, 1, 28, 28), `labels` (K, n), and the initial parameters, layer after layer."""

    model: str
    clients: int
    images: np.ndarray
    labels: np.ndarray
    initial: list[np.ndarray]


def make_data(directory: Path, clients: int) -> None:
    """Random samples of every client, the same for all workers; written once and mapped into memory by each of them."""
    images = np.lib.format.open_memmap(
        directory / "images.npy", mode="w+", dtype=np.float32, shape=(clients, SAMPLES, *SHAPE)
    )
    labels = np.empty((clients, SAMPLES), dtype=np.int64)
    for k in range(clients):
        rng = np.random.default_rng([0, k])
        images[k] = rng.standard_normal((SAMPLES, *SHAPE), dtype=np.float32)
        labels[k] = rng.integers(0, CLASSES, SAMPLES)
    images.flush()
    np.save(directory / "labels.npy", labels)


def read_job(arguments: list[str]) -> Job:
    model, clients, directory = arguments[0], int(arguments[1]), Path(arguments[2])
    # "c": writable pages of one's own, should a framework write; until then all processes share one copy
    images = np.load(directory / "images.npy", mmap_mode="c")[:clients]
    labels = np.load(directory / "labels.npy", mmap_mode="c")[:clients]
    with np.load(directory / f"{model}.npz") as saved:
        initial = [saved[f"arr_{i}"] for i in range(len(saved.files))]
    return Job(model, clients, images, labels, initial)


class Turns:
    """`begin` waits until it is this worker's turn, `end` reports it. What a framework prints goes to standard error."""

    def __init__(self, packages: Iterable[str], initial: Iterable[np.ndarray]) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._packages = tuple(packages)
        self._before = _flat(initial)
        self._started: float | None = None

    def begin(self) -> None:
        if self._started is None:
            self._say(ready={name: _version(name) for name in self._packages})
        if sys.stdin.readline().strip() != "round":
            raise Stop
        self._started = time.perf_counter()

    def end(self, parameters: Iterable[np.ndarray]) -> None:
        assert self._started is not None
        seconds = time.perf_counter() - self._started
        after = _flat(parameters)
        self._say(seconds=seconds, change=float(np.abs(after - self._before).mean()))
        self._before = after

    def _say(self, **answer: object) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)


def _flat(parameters: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(p, dtype=np.float64).ravel() for p in parameters])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
