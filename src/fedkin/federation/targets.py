"""Targets as a user writes them, labels or numbers, become class codes or floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.given import as_classes, hold_texts
from fedkin.federation.reading import ByPart
from fedkin.task import Kind, Task, check_kind

Encode = Callable[[str, np.ndarray], np.ndarray]
"""(client name, raw targets) → class codes (n,) or floats (n, *output shape)."""


def encoded(
    names: Sequence[str],
    given: Sequence[ByPart],
    shape: tuple[int, ...],
    kind: str | None,
    classes: Sequence[Hashable] | None = None,
    tokens: bool = False,
) -> tuple[Task, list[ByPart]]:
    """The task that the targets define (`kind` is guessed where None), and all samples with their targets encoded."""
    kind = check_kind(kind or _guess_kind(given))
    first = next(iter(given[0].values()))[1]
    if kind == "multilabel":
        columns = first.shape[1] if first.ndim == 2 else 1
        encode, task = _columns(columns), Task.of_numbers(kind, shape, (columns,), tokens=tokens)
    elif kind in ("regression", "counts"):
        output = tuple(first.shape[1:])
        encode, task = _floats(output, whole=kind == "counts"), Task.of_numbers(kind, shape, output, tokens=tokens)
    else:
        known = _known_classes(names, given, classes)
        encode, task = _codes(known), Task("classification", shape, classes=tuple(known.tolist()), tokens=tokens)
    return task, [{part: (x, encode(name, y)) for part, (x, y) in own.items()} for name, own in zip(names, given)]


def _guess_kind(given: Sequence[ByPart]) -> Kind:
    targets = [y for data in given for _, y in data.values() if len(y)]
    if targets and all(y.ndim == 2 and y.dtype.kind in "biu" and np.isin(y, (0, 1)).all() for y in targets):
        return "multilabel"
    kinds = {y.dtype.kind in "biuUSO" for data in given for _, y in data.values() if len(y)}
    if len(kinds) == 2:
        raise FedkinError('some clients have labels, others real numbers as targets; pass task="…" or convert them')
    return "classification" if kinds == {True} else "regression"


def _columns(columns: int) -> Encode:
    """Multi-label targets: columns of 0 and 1, (n, C)."""

    def as_columns(name: str, y: np.ndarray) -> np.ndarray:
        width = math.prod(y.shape[1:])
        if width != columns and len(y):
            raise FedkinError(f"client {name!r}: {width} target columns, but {columns} elsewhere")
        if y.dtype.kind not in "biuf" or not np.isin(y, (0, 1)).all():
            raise FedkinError(f"client {name!r}: multi-label targets must be columns of 0 and 1")
        return y.reshape(len(y), columns).astype(np.float32)

    return as_columns


def _floats(output: tuple[int, ...], whole: bool = False) -> Encode:
    """Targets as floats: float64 stays, everything else becomes float32. `whole`: counts, 0 or more."""

    def as_numbers(name: str, y: np.ndarray) -> np.ndarray:
        if y.dtype.kind not in "biuf":
            raise FedkinError(f"client {name!r}: regression targets must be numbers, not {y.dtype}")
        if tuple(y.shape[1:]) != output:
            raise FedkinError(f"client {name!r}: targets of shape {y.shape[1:]}, but {output} elsewhere")
        if whole and ((y < 0) | (y != np.round(y))).any():
            raise FedkinError(f"client {name!r}: counts must be whole numbers, 0 or more; use task='regression'")
        return y if y.dtype == np.float64 else y.astype(np.float32)

    return as_numbers


def _known_classes(names: Sequence[str], given: Sequence[ByPart], classes: Sequence[Hashable] | None) -> np.ndarray:
    """The classes in their order: those given, or all labels seen, sorted."""
    for name, own in zip(names, given):
        for _, y in own.values():
            if y.ndim != 1:
                raise FedkinError(f"client {name!r}: class labels must be one per sample, got shape {y.shape}")
            if y.dtype.kind == "f" and not np.isfinite(y).all():
                raise FedkinError(f"client {name!r}: y has missing targets; drop these rows")
    labels = [(name, y) for name, own in zip(names, given) for _, y in own.values() if len(y)]
    texts = {y.dtype.kind in "US" or hold_texts(name, y) for name, y in labels}
    if len(texts) > 1:
        raise FedkinError("some labels are text, others numbers; convert them to one kind")
    seen = np.unique(np.concatenate([np.unique(y) for _, y in labels]))
    known = as_classes(classes, texts == {True}) if classes is not None else seen
    if len(known) < 2:
        raise FedkinError(f"all clients hold the single class {known.tolist()}; classification needs at least two")
    return known


def _codes(known: np.ndarray) -> Encode:
    """Labels as their positions among the known classes."""
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

    return as_codes
