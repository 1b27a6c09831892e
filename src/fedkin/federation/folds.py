"""Folds: every client cuts its own training samples; what is left when a fold is held out trains a further client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.federation import Federation
from fedkin.federation.split import Split
from fedkin.streams import Streams
from fedkin.task import Task


def fold_name(name: str, fold: int, used: int) -> str:
    """The further client that holds out this fold; number `used` holds out nothing."""
    return f"{name} (without fold {fold + 1})" if fold < used else f"{name} (all)"


def fold_names(names: Sequence[str], used: int, whole: bool) -> tuple[str, ...]:
    """The names of all further clients, fold after fold."""
    return tuple(fold_name(name, fold, used) for fold in range(used + whole) for name in names)


def fold_sizes(sizes: np.ndarray, count: int, used: int, series: bool) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out samples of all further clients, (K·(F + 1),): what `folded(…, whole=True)` has, from (K,).

    >>> fold_sizes(np.array([7, 1]), 3, 2, series=False)
    (array([4, 1, 5, 1, 7, 1]), array([3, 0, 2, 0, 0, 0]))
    """
    places = [_series(int(n), count) if series else np.arange(n) % count for n in sizes]
    held = np.array(
        [[int((place == fold).sum()) if len(place) > 1 else 0 for place in places] for fold in range(used)]
    ).reshape(used, len(sizes))
    held = np.concatenate([held, np.zeros((1, len(sizes)), dtype=np.int64)])
    return (sizes[None] - held).ravel(), held.ravel()


def folded(
    federation: Federation, count: int, used: int | None = None, seed: int = 0, whole: bool = False
) -> Federation:
    """K·F clients without test samples: number f·K + k trains on what client k has outside fold f, and validates on it.

    Folds are stratified by class, and contiguous blocks for series. A client with fewer samples than folds leaves some
    folds empty; one with a single sample holds out nothing. Since the test part is empty, nothing that is chosen on this
    federation can have seen a test sample. `used` holds out only the first so many folds; `whole` adds K
    clients that train on everything.
    """
    if count < 2:
        raise FedkinError(f"folds = {count}; at least 2 are needed")
    which = [assign(federation, k, count, seed) for k in range(len(federation))]
    rest, held = [], []
    used, train = count if used is None else used, federation.train
    numbers = range(used + whole)
    for fold in numbers:
        for k in range(len(federation)):
            out = (which[k] == fold) & (fold < used)
            rest.append(train.part(k, np.flatnonzero(~out)))
            held.append(train.part(k, np.flatnonzero(out)))
    nobody = train.part(0, np.arange(0))
    names = fold_names(federation.names, used, whole)
    parts = [Split.join(part, train.scaling) for part in (rest, held, [nobody] * len(names))]
    return Federation(names, federation.task, parts[0], parts[1], parts[2])


def is_series(task: Task) -> bool:
    """Whether samples that follow each other are alike, so that a fold is a block of them."""
    return task.forecast is not None or task.tokens


def _series(n: int, count: int) -> np.ndarray:
    return np.arange(n) * min(count, n) // n


def assign(federation: Federation, k: int, count: int, seed: int) -> np.ndarray:
    """The fold of each training sample of client k, (n_k,); −1: never held out."""
    y = federation.train.y[federation.train.offsets[k] : federation.train.offsets[k + 1]]
    n = len(y)
    if n == 1:
        return np.array([-1])
    if is_series(federation.task):
        return _series(n, count)
    order = Streams(seed).generator("folds", federation.names[k]).permutation(n)
    if federation.task.classes:
        order = order[np.argsort(y[order], kind="stable")]
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n) % count
    return place


def joined_splits(one: Split, other: Split) -> Split:
    """The samples of two splits of the same clients as one."""
    if not other.sizes.any():
        return one
    pairs = [[split.part(k, np.arange(split.sizes[k])) for split in (one, other)] for k in range(len(one))]
    both = Split.join([part for pair in pairs for part in pair], one.scaling)
    return Split(both.stored, both.y, both.offsets[::2], one.scaling)


def whole_training(federation: Federation) -> Federation:
    """The federation with its validation samples among those for training: folds take their place."""
    nothing = Split.join([federation.train.part(0, np.arange(0))] * len(federation), federation.train.scaling)
    return replace(federation, train=joined_splits(federation.train, federation.validation), validation=nothing)


def without_fold(federation: Federation, count: int, fold: int, seed: int = 0) -> Federation:
    """The same K clients, training on what they have outside of a fold and validating on it; without test samples.

    Graph, public inputs and all that is known of the clients stay. Clients with a single sample hold out nothing.
    """
    train, clients = federation.train, range(len(federation))
    out = [assign(federation, k, count, seed) == fold for k in clients]
    parts = (
        [train.part(k, np.flatnonzero(~out[k])) for k in clients],
        [train.part(k, np.flatnonzero(out[k])) for k in clients],
        [train.part(0, np.arange(0))] * len(federation),
    )
    rest, held, nothing = (Split.join(part, train.scaling) for part in parts)
    return replace(federation, train=rest, validation=held, test=nothing)
