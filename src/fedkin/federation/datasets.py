"""Torch-like data sets as clients: read whole where memory holds them, else item by item when a batch needs them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.readers import Readers
from fedkin.federation.unread import Unread

ROOM = 4
"""Samples are read whole if memory could hold them so many times: they are split, and trained on, beside it."""
READ_AT_ONCE = 256
"""Items of one question while targets are looked through."""


@dataclass(frozen=True, eq=False)
class Items:
    """The inputs of a data set by position."""

    name: str
    dataset: Any

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return np.stack([np.atleast_1d(self.dataset[int(i)][0]) for i in rows])


@dataclass(frozen=True, eq=False)
class ItemTargets:
    """The targets of a data set by position; reading one also checks its input."""

    items: Items
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        found = []
        for i in rows:
            own, y = self.items.dataset[int(i)]
            x = np.atleast_1d(own)
            if x.shape != self.shape or x.dtype != self.dtype:
                raise FedkinError(
                    f"client {self.items.name!r}: input {i} is {x.dtype} of shape {x.shape}, the first one {self.dtype} "
                    f"of shape {self.shape}; all need the same"
                )
            if x.dtype.kind == "f" and not np.isfinite(x).all():
                raise FedkinError(f"client {self.items.name!r}: input {i} holds NaN or infinity; drop or impute it")
            found.append(np.asarray(y))
        return np.stack(found)


def read_datasets(datasets: Mapping[str, Any], lazy: bool | str, readers: int | None) -> dict[str, tuple[Any, Any]]:
    """{client: (X, y)} of {client: data set of (input, target) pairs}; X is `Unread` where it is to be read lazily.

    `lazy`: True, False, or "auto", which reads whole what fits into memory. `readers` are the processes that read
    (default: one per core, at most four; 0: this one).
    """
    if lazy not in (True, False, "auto"):
        raise FedkinError(f"lazy is {lazy!r}; use True, False or 'auto'")
    first = {str(name): _first(str(name), dataset) for name, dataset in datasets.items()}
    size = sum(x.nbytes * len(dataset) for (x, _), dataset in zip(first.values(), datasets.values()))
    if lazy is False or (lazy == "auto" and ROOM * size <= memory_left()):
        return {name: _whole(name, dataset, *first[name]) for name, dataset in zip(first, datasets.values())}
    items = [Items(name, dataset) for name, dataset in zip(first, datasets.values())]
    looks = [ItemTargets(item, x.shape, x.dtype) for item, (x, _) in zip(items, first.values())]
    count = min(4, len(os.sched_getaffinity(0))) if readers is None else readers
    pool = Readers([*items, *looks], count) if count else None
    return {
        item.name: (_view(item, len(item.dataset), x, pool), _targets(look, y, pool))
        for item, look, (x, y) in zip(items, looks, first.values())
    }


def memory_left() -> float:
    """Bytes that this process may still use: what the machine has free, its own limits, and those of its group."""
    left = [_told("/proc/meminfo", "MemAvailable:")]
    try:
        import resource

        used = {resource.RLIMIT_AS: "VmSize:", resource.RLIMIT_DATA: "VmData:"}
        limits = {limit: resource.getrlimit(limit)[0] for limit in used}
        left += [
            limits[limit] - _told("/proc/self/status", field, 0) for limit, field in used.items() if limits[limit] > 0
        ]
    except ImportError:  # no such limits on this system
        pass
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        left += [] if limit == "max" else [int(limit) - int((group / "memory.current").read_text())]
    except (OSError, ValueError):
        pass
    return max(0, min(left))


def _told(path: str, field: str, otherwise: float = float("inf")) -> float:
    """A number of bytes from a file of the system's that tells it in kB."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return otherwise
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith(field)), otherwise)


def _wrong(name: str, problem: Exception) -> FedkinError:
    return FedkinError(f"client {name!r}: its dataset must have a length and yield (input, target) pairs ({problem})")


def _first(name: str, dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        if not len(dataset):
            raise FedkinError(f"client {name!r} has no samples; drop it or give it data")
        x, y = dataset[0]
        return np.atleast_1d(x), np.asarray(y)
    except (TypeError, ValueError) as problem:
        raise _wrong(name, problem) from problem


def _whole(name: str, dataset: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All items, inputs in the type they have."""
    n = len(dataset)
    inputs, targets = np.empty((n, *x.shape), dtype=x.dtype), [y]
    inputs[0] = x
    try:
        for i in range(1, n):
            own, target = dataset[i]
            value = np.atleast_1d(own)
            if value.shape != x.shape:
                raise ValueError(f"item {i} has an input of shape {value.shape}, the first one {x.shape}")
            inputs[i] = value
            targets.append(np.asarray(target))
        return inputs, np.stack(targets)
    except (TypeError, ValueError) as problem:
        raise _wrong(name, problem) from problem


def _view(items: Items, n: int, x: np.ndarray, pool: Readers | None) -> Unread:
    return Unread((items,), np.zeros(n, dtype=np.int32), np.arange(n), x.shape, x.dtype, pool)


def _targets(look: ItemTargets, y: np.ndarray, pool: Readers | None) -> np.ndarray:
    """All targets: those that the data set lists (`targets`, as torchvision's do), else read item by item."""
    dataset, n = look.items.dataset, len(look.items.dataset)
    listed = getattr(dataset, "targets", None)
    if listed is not None and len(listed) == n:
        return np.asarray(listed)
    dtype = np.dtype(object) if y.dtype.kind in "US" else y.dtype
    view = Unread((look,), np.zeros(n, dtype=np.int32), np.arange(n), y.shape, dtype, pool)
    parts = [np.arange(start, min(n, start + READ_AT_ONCE)) for start in range(0, n, READ_AT_ONCE)]
    try:
        return np.concatenate(list(view.ahead(parts)))
    except (TypeError, ValueError, LookupError, OSError) as problem:
        raise _wrong(look.items.name, problem) from problem
