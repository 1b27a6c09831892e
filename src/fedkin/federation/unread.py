"""Samples that stay where they are until a batch needs them: memory-mapped arrays and data sets read item by item.

`Unread` looks like an array of samples. Row i is row `row[i]` of source `which[i]`; asking for some rows reads these rows.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedkin.federation.readers import Readers

ReadRows = Callable[[np.ndarray], np.ndarray]
"""Positions (n,) → stored samples (n, *shape)."""


def mapped(array: Any) -> bool:
    """Whether an array lies in a file that is mapped into memory."""
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return True
        array = getattr(array, "base", None)
    return False


@dataclass(frozen=True)
class Unread:
    """Samples (n, *shape) of one type, each of which is read when it is asked for."""

    sources: tuple[ReadRows | np.ndarray, ...]
    which: np.ndarray
    row: np.ndarray
    sample: tuple[int, ...]
    """The shape of one sample."""
    dtype: np.dtype[Any]
    readers: Readers | None = None
    """The processes that read ahead; None: this one reads."""

    @classmethod
    def over(cls, array: np.ndarray) -> Unread:
        """All rows of a (mapped) array."""
        n = len(array)
        return cls((array,), np.zeros(n, dtype=np.int32), np.arange(n), array.shape[1:], array.dtype)

    @classmethod
    def join(cls, parts: Sequence[Unread | np.ndarray]) -> Unread:
        """Several, one after the other; a source they share is kept once."""
        views = [part if isinstance(part, Unread) else cls.over(part) for part in parts]
        sources: dict[int, Any] = {}
        for view in views:
            for source in view.sources:
                sources.setdefault(id(source), source)
        place = {key: k for k, key in enumerate(sources)}
        which = [np.array([place[id(s)] for s in view.sources], dtype=np.int32)[view.which] for view in views]
        rows = np.concatenate([view.row for view in views])
        common = np.result_type(*(view.dtype for view in views))
        readers = next((view.readers for view in views if view.readers is not None), None)
        return cls(tuple(sources.values()), np.concatenate(which), rows, views[0].sample, common, readers)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.row), *self.sample)

    @property
    def ndim(self) -> int:
        return 1 + len(self.sample)

    @property
    def itemwise(self) -> bool:
        """Whether some are read item by item, which may take long for all of them."""
        return not all(isinstance(source, np.ndarray) for source in self.sources)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: np.ndarray | slice) -> Unread:
        """Some of them, still unread; sources that none of them is from are let go."""
        which, row = self.which[rows], self.row[rows]
        used, codes = np.unique(which, return_inverse=True)
        kept = tuple(self.sources[k] for k in used)
        return replace(self, sources=kept, which=codes.astype(np.int32), row=row)

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Read some of them, (n, *shape)."""
        which, row = self.which[rows], self.row[rows]
        return rows_from(self.sources, which, row, self.sample, self.dtype)

    def ahead(self, batches: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """Read these batches of rows one after the other; processes that read ahead have the next ones ready."""
        if self.readers is None:
            yield from (self[rows] for rows in batches)
            return
        waiting: list[Future[np.ndarray]] = []
        todo = iter(batches)
        for _ in range(self.readers.depth):
            self._ask(self.readers, todo, waiting)
        while waiting:
            found = waiting.pop(0).result()
            self._ask(self.readers, todo, waiting)
            yield found

    def _ask(self, readers: Readers, todo: Iterator[np.ndarray], waiting: list[Future[np.ndarray]]) -> None:
        rows = next(todo, None)
        if rows is not None:
            places = readers.places(self.sources)[self.which[rows]]
            waiting.append(readers.submit(places, self.row[rows], self.sample, self.dtype))

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent elsewhere (to a Ray actor), mapped arrays take along these rows alone; the receiver reads by itself."""
        sources, row = [], self.row.copy()
        for k, source in enumerate(self.sources):
            if isinstance(source, np.ndarray):
                mine = self.which == k
                source = source[row[mine]]
                row[mine] = np.arange(len(source))
            sources.append(source)
        return Unread, (tuple(sources), self.which, row, self.sample, self.dtype)


def rows_from(
    sources: Sequence[ReadRows | np.ndarray],
    which: np.ndarray,
    row: np.ndarray,
    sample: tuple[int, ...],
    dtype: np.dtype[Any],
) -> np.ndarray:
    """Rows of several sources in one array, (n, *sample)."""
    found = np.empty((len(row), *sample), dtype=dtype)
    for k in np.unique(which):
        mine, source = np.flatnonzero(which == k), sources[k]
        found[mine] = source[row[mine]] if isinstance(source, np.ndarray) else source(row[mine])
    return found
