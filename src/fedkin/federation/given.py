"""What users give as samples and labels: arrays of one shape, labels of one kind, shares between 0 and 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.unread import Unread


def check_fractions(test: Any, validation: Any) -> None:
    """Shares of the samples that are not trained on."""
    for name, fraction in (("test_fraction", test), ("validation_fraction", validation)):
        if isinstance(fraction, bool) or not isinstance(fraction, int | float | np.number) or not 0 <= fraction < 1:
            raise FedkinError(f"{name} is {fraction!r}; it must be a number, at least 0 and below 1")
    if test + validation >= 1:
        raise FedkinError("test_fraction and validation_fraction leave nothing to train on; their sum must be < 1")


def as_array(name: str, what: str, value: Any) -> np.ndarray:
    """A client's samples or targets as an array; what is unread stays so."""
    if isinstance(value, Unread):
        return value  # type: ignore[return-value]
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as problem:  # ragged lists
        raise FedkinError(f"client {name!r}: {what} is no array of one shape: {problem}") from None


def hold_texts(name: str, y: np.ndarray) -> bool:
    """Whether labels in an array of objects are texts; a mixture cannot be sorted."""
    if y.dtype.kind != "O":
        return False
    kinds = {isinstance(label, str) for label in y.ravel()}
    numbers = all(isinstance(label, str | int | float | np.number | np.bool_) for label in y.ravel())
    if len(kinds) > 1 or not numbers:
        raise FedkinError(f"client {name!r}: its labels are of several kinds; convert them all to text or to numbers")
    return kinds == {True}


def as_classes(classes: Any, texts: bool) -> np.ndarray:
    """The classes as told, of the same kind as the labels."""
    try:
        told = list(classes)
        known = np.asarray(told)
    except (TypeError, ValueError) as problem:
        raise FedkinError(f"classes must be a list of labels: {problem}") from None
    if known.ndim != 1 or len(set(map(str, told))) < len(told) or any(isinstance(t, str) != texts for t in told):
        kind = "texts" if texts else "numbers"
        raise FedkinError(f"classes is {told!r}; the labels are {kind}: list each class once, as {kind}")
    return known
