"""Split: the samples of all clients, one after the other. Holdout: which of a client's are for training, which for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fedkin.federation.given import check_fractions
from fedkin.federation.scaling import Rescaling
from fedkin.federation.unread import Unread
from fedkin.streams import Streams

PARTS = ("train", "validation", "test")


SEEN_AT_ONCE = 2**24
"""Samples outside of memory are looked through so many bytes at a time."""


@dataclass(frozen=True)
class Split:
    """The samples of all clients in one array, client after client (a ragged array).

    Client k owns rows `offsets[k]:offsets[k+1]` of `stored` (n, *input shape), samples as they are kept: an array of any
    number type, or `Unread`; and of `y` (n,) or (n, *output shape). `scaling` makes inputs of what is stored.
    """

    stored: np.ndarray | Unread
    y: np.ndarray
    offsets: np.ndarray
    scaling: Rescaling = field(default_factory=Rescaling)

    @classmethod
    def join(cls, parts: Sequence[tuple[Any, np.ndarray]], scaling: Rescaling | None = None) -> Split:
        """Put the (stored samples, y) of every client one after the other; what is unread stays so."""
        samples, targets = zip(*parts)
        offsets = np.concatenate([[0], np.cumsum([*map(len, samples)])]).astype(np.int64)
        stored = Unread.join(samples) if Unread in map(type, samples) else np.concatenate(samples)
        return cls(stored, np.concatenate(targets), offsets, scaling or Rescaling())

    @property
    def x(self) -> np.ndarray:
        """All inputs, (n, *input shape): a float copy where they are stored in another way."""
        return self.inputs(slice(None))

    def inputs(self, rows: slice | np.ndarray) -> np.ndarray:
        """Some inputs, (rows, *input shape)."""
        return self.scaling(self.stored[rows])

    def blocks(self) -> Iterator[np.ndarray]:
        """All inputs, some at a time where they are stored in another way."""
        if self.scaling.plain and isinstance(self.stored, np.ndarray):
            return iter([self.stored])
        size = max(1, SEEN_AT_ONCE // max(1, 4 * int(np.prod(self.stored.shape[1:]))))
        return (self.inputs(slice(start, start + size)) for start in range(0, max(1, len(self.stored)), size))

    @cached_property
    def sizes(self) -> np.ndarray:
        """Samples per client, shape (K,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(int(self.offsets[k]), int(self.offsets[k + 1]))
        return self.inputs(rows), self.y[rows]

    def part(self, k: int, rows: np.ndarray) -> tuple[np.ndarray | Unread, np.ndarray]:
        """Some samples of client k (positions among its own) as they are stored, and their targets."""
        own = int(self.offsets[k]) + rows
        return self._taken(own), self.y[own]

    def _taken(self, rows: np.ndarray) -> np.ndarray | Unread:
        return self.stored.take(rows) if isinstance(self.stored, Unread) else self.stored[rows]

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return (self[k] for k in range(len(self)))

    def take(self, clients: Sequence[int] | np.ndarray) -> Split:
        """The samples of these clients only, in this order."""
        if len(clients) == len(self) and np.array_equal(clients, np.arange(len(self))):
            return self
        chosen = np.asarray(clients, dtype=np.int64)
        sizes = self.sizes[chosen]
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        index = np.arange(offsets[-1]) + np.repeat(self.offsets[chosen] - offsets[:-1], sizes)
        return Split(self._taken(index), self.y[index], offsets, self.scaling)


@dataclass(frozen=True)
class Holdout:
    """The shares of every client's samples that are held back for tests and for validation; the rest is for training."""

    test: float = 0.25
    validation: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_fractions(self.test, self.validation)

    def indices(self, client: str, n: int, labels: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Which of a client's n samples go where: {part: sorted indices}, drawn by seed and client name alone.

        `labels` (n,) are class codes, spread over the parts in proportion; None where targets are numbers.
        """
        return stratified(n, labels, self.test, self.validation, Streams(self.seed).generator("split", client))

    def split(
        self, client: str, samples: Mapping[str, tuple[Any, np.ndarray]], stratify: bool
    ) -> dict[str, tuple[Any, np.ndarray]]:
        """A client's (x, y) in all three parts: "all" of them divided here, or its own parts, empty where it has none."""
        if "all" in samples:
            x, y = samples["all"]
            index = self.indices(client, len(x), y if stratify else None)
            take = x.take if isinstance(x, Unread) else x.__getitem__
            return {part: (take(rows), y[rows]) for part, rows in index.items()}
        x, y = samples["train"]
        return {part: samples.get(part, (x[:0], y[:0])) for part in PARTS}


def stratified(
    n: int, labels: np.ndarray | None, test: float, validation: float, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Indices of train, validation and test: disjoint, together 0…n−1, each class spread in proportion.

    Samples are put in an order that spreads every class evenly over [0, 1) and cut at the two fractions, so each part
    holds its share of every class up to one sample. At least one sample is kept for training.
    """
    position = rng.permutation(n).astype(float)
    if labels is not None:
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            position[rows] = (rng.permutation(len(rows)) + rng.random()) / len(rows)
    order = np.argsort(position, kind="stable")
    n_test, n_validation = round(test * n), round(validation * n)
    while n_test + n_validation >= n:
        n_validation, n_test = (n_validation - 1, n_test) if n_validation else (0, n_test - 1)
    cuts = np.split(order, [n_test, n_test + n_validation])
    return {part: np.sort(rows) for part, rows in zip(("test", "validation", "train"), cuts)}
