"""Folds: every client cuts its own training samples; what is left when a fold is held out trains a further client."""

from __future__ import annotations

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation, Split
from fedkin.streams import Streams


def fold_name(name: str, fold: int, used: int) -> str:
    """The further client that holds out this fold; number `used` holds out nothing."""
    return f"{name} (without fold {fold + 1})" if fold < used else f"{name} (all)"


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
    used = count if used is None else used
    numbers = range(used + whole)
    for fold in numbers:
        for k in range(len(federation)):
            x, y = federation.train[k]
            out = (which[k] == fold) & (fold < used)
            rest.append((x[~out], y[~out]))
            held.append((x[out], y[out]))
    x, y = federation.train.x[:0], federation.train.y[:0]
    names = tuple(fold_name(name, fold, used) for fold in numbers for name in federation.names)
    nothing = Split.join([(x, y)] * len(names))
    return Federation(names, federation.task, Split.join(rest), Split.join(held), nothing)


def assign(federation: Federation, k: int, count: int, seed: int) -> np.ndarray:
    """The fold of each training sample of client k, (n_k,); −1: never held out."""
    y = federation.train[k][1]
    n = len(y)
    if n == 1:
        return np.array([-1])
    if federation.task.forecast is not None or federation.task.tokens:  # neighbours in time are alike
        return np.arange(n) * min(count, n) // n
    order = Streams(seed).generator("folds", federation.names[k]).permutation(n)
    if federation.task.one_label:
        order = order[np.argsort(y[order], kind="stable")]
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n) % count
    return place
