"""Shard: one or more clients in one process, with their data, their private state and the workers that train them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedkin.compute.memory import keep_freed
from fedkin.compute.threads import one_thread
from fedkin.federation import Federation
from fedkin.federation.split import PARTS
from fedkin.local.changes import Changes
from fedkin.local.fronted import Fronted
from fedkin.local.kernels import Kernel, choose_kernel
from fedkin.local.samples import Samples
from fedkin.models import ModelSpec
from fedkin.models.front import Front, front_of
from fedkin.privacy.ledger import Ledger
from fedkin.streams import Streams, client_keys
from fedkin.task.choice import augmentation_of

T = TypeVar("T")
PASS = 2**18
"""Numbers of rows that a worker looks at together, where it only looks at them."""


class Shard:
    """The client side. A task is a function of a shard (see `fedkin.local.tasks`)."""

    def __init__(self, federation: Federation, spec: ModelSpec, streams: Streams, workers: int | None = None) -> None:
        self.federation, self.spec, self.streams = federation, spec.settled(streams).placed(), streams
        self.names = federation.names
        self.task = federation.task
        self.keys = client_keys(federation.names)
        self.placement = spec.placement
        self.workers = (workers or len(os.sched_getaffinity(0))) if self.placement.on_host else 1
        device, tokens = torch.device(self.placement.device), federation.task.tokens
        self.train = Samples(federation.train, spec.dtype, tokens, device)
        self.validation = Samples(federation.validation, spec.dtype, tokens, device)
        self.test = Samples(federation.test, spec.dtype, tokens, device)
        self.given = self.train
        """The training samples as they were given, whatever frozen layers make of them."""
        with torch.device("cpu"):  # its random numbers are those that the search for a front watches
            front = front_of(self.spec, self.task) if spec.caches else ""
        if isinstance(front, Front):
            self.spec, self.task = front.rest(), front.task(self.task)
            made = partial(Samples, dtype=spec.dtype, tokens=False, device=device)
            for part in PARTS:
                given: Any = getattr(self, part)
                setattr(self, part, Fronted(given, getattr(federation, part), front, self.workers, made))
        self.choice = choose_kernel(self.spec, self.task)
        self.store: dict[str, Tensor] = {}
        """Private state by name: a tensor whose first axis is the shard's clients."""
        self.unset: dict[str, Tensor] = {}
        """After a restart: clients, (clients,) bool, that had no private state of this name when it was saved."""
        self.objects: dict[str, Any] = {}
        """What is no tensor (estimators): never saved, built again from private state after a restart."""
        self.made: dict[str, Any] = {}
        """What is made of the model alone (kernels with features): made again where it is missing, no recipe needed."""
        self.moments: dict[str, Tensor] = {}
        """What the step rules of the training under way remember, one row per asked client (`moments="keep"`)."""
        self.privacy_limit: tuple[float, float] | None = None
        """(ε, δ) that each client may spend on noisy answers in all; None: they are only added up (`privacy_spent`)."""
        self.ledger: Ledger | None = None
        """The host's own ledger of private training, which the server side can neither choose nor reset."""
        self.ledgers: dict[str | None, Ledger] = {}
        """Where the host has none: ledgers by the file that the run names."""
        keep_freed()
        self._make_kernels()
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.names)

    def with_model(self, spec: ModelSpec) -> Shard:
        """The same clients, samples and private state, seen with another model."""
        twin = copy(self)
        twin.spec, twin.choice, twin.made = spec, choose_kernel(spec, self.task), {}
        twin._make_kernels()
        twin._pool = self._threads()
        return twin

    def changes(self, purpose: str, round: int, keys: np.ndarray) -> Changes | None:
        """The augmentation of batches drawn for a purpose, from the streams of the clients with these keys."""
        if self.task.augment is None:
            return None
        words = self.streams.words(f"{purpose} augment", round, keys)
        return Changes(augmentation_of(self.task), words, len(self.task.classes))

    def private(self, name: str, default: Callable[[], Tensor]) -> Tensor:
        """The private state `name` of all clients; made from one client's `default` at first use."""
        if name not in self.store:
            first = default()
            self.store[name] = first.expand(len(self), *first.shape).clone()
        elif name in self.unset:
            self.store[name][self.unset.pop(name)] = default()
        return self.store[name]

    def _make_kernels(self) -> None:
        """The first; others are made when as many workers want one at the same time."""
        first = self.choice.make()
        self.together = first.chunk
        """How many clients are best worked on at once."""
        self._kernels: SimpleQueue[Kernel] = SimpleQueue()
        self._kernels.put(first)

    @contextmanager
    def kernel(self) -> Iterator[Kernel]:
        """A kernel for the calling thread alone."""
        try:
            kernel = self._kernels.get_nowait()
        except Empty:
            kernel = self.choice.make()
        try:
            yield kernel
        finally:
            self._kernels.put(kernel)

    def each(self, work: Callable[[T], None], items: Sequence[T]) -> None:
        """Do independent pieces of work, one single-threaded worker per core.

        Models that draw random numbers are worked on one after the other: torch's generator is global.
        """
        with one_thread():
            if self.workers == 1 or len(items) < 2 or self.choice.stochastic:
                for item in items:
                    work(item)
                return
            for _ in self._threads().map(work, items):
                pass

    def per_row(self, measure: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        """`measure` of rows (k, …), one number each, (k,): as many at a time, by every worker, as its cache holds.

        All threads at work on one such pass would wait for the last of them, which another process may have stopped.
        """
        some = max(1, PASS // max(1, rows[0][:1].numel()))
        if len(rows[0]) <= some:
            with one_thread():
                return measure(*rows)
        parts = [slice(start, start + some) for start in range(0, len(rows[0]), some)]
        found: dict[int, Tensor] = {}

        def work(part: slice) -> None:
            found[part.start] = measure(*(each[part] for each in rows))

        self.each(work, parts)
        return torch.cat([found[part.start] for part in parts])

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
        return self._pool

    def chunks(self, ids: np.ndarray, cost: np.ndarray, size: int) -> list[np.ndarray]:
        """Positions 0…len(ids)−1 in chunks of similar cost, dearest first; as many for every worker, of as many clients each."""
        order = np.argsort(-cost, kind="stable")
        rounds = -(-len(ids) // (max(1, size) * self.workers))
        return np.array_split(order, min(len(ids), rounds * self.workers)) if len(ids) else []

    def close(self) -> None:
        """End the worker threads, and the processes that read ahead."""
        for samples in (self.train, self.validation, self.test):
            samples.close()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
