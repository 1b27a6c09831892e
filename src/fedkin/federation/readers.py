"""Processes that read samples ahead of their use, by a data set's own `__getitem__`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from threading import Lock
from typing import Any

import numpy as np

_SOURCES: Sequence[Any] = ()
"""What a reading process reads from."""


class Readers:
    """Some processes that hold the sources of a federation's samples. They start with the first question.

    Where processes can be forked the sources are inherited; elsewhere they are sent, and must be picklable.
    """

    def __init__(self, sources: Sequence[Any], count: int) -> None:
        self.sources, self.count, self.depth = tuple(sources), count, 2 * count
        self._place = {id(source): k for k, source in enumerate(self.sources)}
        self._pool: ProcessPoolExecutor | None = None
        self._lock = Lock()

    def places(self, sources: Sequence[Any]) -> np.ndarray:
        """Where these sources are among those that the processes hold, (sources,)."""
        return np.array([self._place[id(source)] for source in sources], dtype=np.int32)

    def start(self) -> ProcessPoolExecutor:
        """The processes; best started before the threads of training are, of which a fork takes no copy."""
        with self._lock:
            if self._pool is None:
                able = multiprocessing.get_all_start_methods()
                context: Any = multiprocessing.get_context("fork" if "fork" in able else "spawn")
                self._pool = ProcessPoolExecutor(self.count, context, _hold, (self.sources,))
                self._pool.submit(int).result()
            return self._pool

    def submit(self, *what: Any) -> Future[np.ndarray]:
        """Ask for `rows_from(sources, *what)`."""
        return self.start().submit(_read, *what)

    def close(self) -> None:
        """End the processes; a further question starts new ones."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None


def _hold(sources: Sequence[Any]) -> None:
    global _SOURCES
    import torch

    torch.set_num_threads(1)  # the threads of the process that was forked are not here
    _SOURCES = sources


def _read(*what: Any) -> np.ndarray:
    from fedkin.federation.unread import rows_from

    return rows_from(_SOURCES, *what)
