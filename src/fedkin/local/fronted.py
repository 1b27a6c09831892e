"""Samples that have passed the frozen front of the model: every one once, when they are first wanted."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch
from torch import nn

from fedkin.compute.threads import one_thread
from fedkin.federation import Split
from fedkin.models.front import Front


class Fronted:
    """Stands for a split of a shard: the same clients and targets, what the front makes of their inputs instead of these.

    Features are made client by client, each from its own samples alone, so that sharding does not matter.
    """

    def __init__(self, given: Any, split: Split, front: Front, workers: int, made: Callable[[Split], Any]) -> None:
        self.y, self.offsets, self.sizes = given.y, given.offsets, given.sizes
        self._given, self._split, self._front, self._workers, self._made = given, split, front, workers, made
        self._lock, self._samples = Lock(), None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copying and pickling look for these before anything is there
            raise AttributeError(name)
        with self._lock:  # worker threads may be the first to ask
            if self._samples is None:
                self._samples = self._made(Split(self._features().numpy(), self._split.y, self.offsets))
        return getattr(self._samples, name)

    def _features(self) -> torch.Tensor:
        features = torch.empty((len(self.y), *self._front.shape), dtype=self._front.spec.dtype, device="cpu")
        modules: SimpleQueue[nn.Module] = SimpleQueue()
        for _ in range(self._workers):
            modules.put(self._front.spec.template().eval())

        def work(k: int) -> None:
            module, rows = modules.get(), slice(int(self.offsets[k]), int(self.offsets[k + 1]))
            try:
                features[rows] = self._front.through(module, self._given.of(k)[0])
            finally:
                modules.put(module)

        if self._workers == 1:  # on a device, too: torch's default device is the calling thread's
            with one_thread():
                for k in range(len(self.sizes)):
                    work(k)
            return features
        with ThreadPoolExecutor(self._workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, range(len(self.sizes))):
                pass
        return features

    def close(self) -> None:
        """Let go of what the inputs hold open; no feature is made for that."""
        getattr(self._given, "close", lambda: None)()
