"""Folds: every client cuts its own training samples; what is left when a fold is held out trains a further client."""

from __future__ import annotations

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation, Split
from fedkin.streams import Streams


def fold_name(name: str, fold: int) -> str:
    """The further client that holds out this fold."""
    return f"{name} (without fold {fold + 1})"


def folded(federation: Federation, count: int, used: int | None = None, seed: int = 0) -> Federation:
    """K·F clients without test samples: number f·K + k trains on what client k has outside fold f, and validates on it.

    Folds are stratified by class, and contiguous blocks for series. A client with fewer samples than folds leaves some
    folds empty; one with a single sample holds out nothing. Since the test part is empty, nothing that is chosen on this
    federation can have seen a test sample. `used` holds out only the first so many folds.
    """
    if count < 2:
        raise FedkinError(f"folds = {count}; at least 2 are needed")
    which = [assign(federation, k, count, seed) for k in range(len(federation))]
    rest, held = [], []
    used, train = count if used is None else used, federation.train
    for fold in range(used):
        for k in range(len(federation)):
            rest.append(train.part(k, np.flatnonzero(which[k] != fold)))
            held.append(train.part(k, np.flatnonzero(which[k] == fold)))
    nobody = train.part(0, np.arange(0))
    names = tuple(fold_name(name, fold) for fold in range(used) for name in federation.names)
    parts = [Split.join(part, train.scaling) for part in (rest, held, [nobody] * len(names))]
    return Federation(names, federation.task, parts[0], parts[1], parts[2])


def assign(federation: Federation, k: int, count: int, seed: int) -> np.ndarray:
    """The fold of each training sample of client k, (n_k,); −1: never held out."""
    y = federation.train.y[federation.train.offsets[k] : federation.train.offsets[k + 1]]
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
