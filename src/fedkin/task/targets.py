"""From targets as users have them to codes, numbers or columns, and the task they define."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.task.task import Kind, Task

Given = list[dict[str, tuple[np.ndarray, np.ndarray]]]
"""The (X, y) of every client, by part."""


def guess_kind(given: Given) -> Kind:
    """The kind of task that targets speak of."""
    targets = [y for data in given for _, y in data.values() if len(y)]
    if targets and all(y.ndim == 2 and y.dtype.kind in "biu" and np.isin(y, (0, 1)).all() for y in targets):
        return "multilabel"
    kinds = {y.dtype.kind in "biuUSO" for data in given for _, y in data.values() if len(y)}
    if len(kinds) == 2:
        raise FedkinError('some clients have labels, others real numbers as targets; pass task="…" or convert them')
    return "classification" if kinds == {True} else "regression"


def encoding(
    kind: str,
    names: tuple[str, ...],
    given: Given,
    shape: tuple[int, ...],
    classes: Sequence[Hashable] | None,
) -> tuple[Any, Task]:
    """How raw targets become codes or floats, and the task they define."""
    if kind == "multilabel":
        return _columns(names, given, shape)
    if kind in ("regression", "counts"):
        output = tuple(next(iter(given[0].values()))[1].shape[1:])

        def as_numbers(name: str, y: np.ndarray) -> np.ndarray:
            if y.dtype.kind not in "biuf":
                raise FedkinError(f"client {name!r}: regression targets must be numbers, not {y.dtype}")
            if tuple(y.shape[1:]) != output:
                raise FedkinError(f"client {name!r}: targets of shape {y.shape[1:]}, but {output} elsewhere")
            if kind == "counts" and ((y < 0) | (y != np.round(y))).any():
                raise FedkinError(f"client {name!r}: counts must be whole numbers, 0 or more; use task='regression'")
            return y if y.dtype == np.float64 else y.astype(np.float32)

        loss = "poisson" if kind == "counts" else None
        return as_numbers, Task("regression", shape, output_shape=output, loss=loss)

    for name, data in zip(names, given):
        for _, y in data.values():
            if y.ndim != 1:
                raise FedkinError(f"client {name!r}: class labels must be one per sample, got shape {y.shape}")
            if y.dtype.kind == "f" and not np.isfinite(y).all():
                raise FedkinError(f"client {name!r}: y has missing targets; drop these rows")
    seen = np.unique(np.concatenate([np.unique(y) for data in given for _, y in data.values()]))
    known = np.asarray(list(classes)) if classes is not None else seen
    order = np.argsort(known, kind="stable")

    def as_codes(name: str, y: np.ndarray) -> np.ndarray:
        if len(y) == 0:
            return np.zeros(0, dtype=np.int64)
        place = np.searchsorted(known[order], y)
        codes = order[np.minimum(place, len(known) - 1)]
        wrong = known[codes] != y
        if wrong.any():
            raise FedkinError(
                f"client {name!r} holds label {y[wrong][0]!r}, which is not among the classes "
                f"{known.tolist()}; add it to `classes` or drop these samples"
            )
        return codes.astype(np.int64)

    if len(known) < 2:
        raise FedkinError(f"all clients hold the single class {known.tolist()}; classification needs at least two")
    return as_codes, Task("classification", shape, classes=tuple(known.tolist()))


def _columns(names: tuple[str, ...], given: Given, shape: tuple[int, ...]) -> tuple[Any, Task]:
    """Multi-label targets: columns of 0 and 1, (n, C)."""
    first = next(iter(given[0].values()))[1]
    columns = first.shape[1] if first.ndim == 2 else 1

    def as_columns(name: str, y: np.ndarray) -> np.ndarray:
        if y.reshape(len(y), -1).shape[1:] != (columns,) and len(y):
            raise FedkinError(
                f"client {name!r}: {y.reshape(len(y), -1).shape[1]} target columns, but {columns} elsewhere"
            )
        if y.dtype.kind not in "biuf" or not np.isin(y, (0, 1)).all():
            raise FedkinError(f"client {name!r}: multi-label targets must be columns of 0 and 1")
        return y.reshape(len(y), columns).astype(np.float32)

    return as_columns, Task("multilabel", shape, output_shape=(columns,))
