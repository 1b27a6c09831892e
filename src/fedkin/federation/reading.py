"""What a user hands over as samples, checked: arrays of numbers, as many targets as inputs, one input shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation.given import as_array
from fedkin.federation.unread import Unread, mapped

ByPart = dict[str, tuple[np.ndarray, np.ndarray]]
"""One client's (X, y) by part: "all", to be split here, or "train", "validation" and "test"."""


def read_samples(name: str, value: Any) -> ByPart:
    """One client's arrays: {"all": (X, y)}, or its own split {"train": (X, y), …}."""
    if isinstance(value, Mapping):
        unexpected = set(value) - {"train", "validation", "test"}
        if unexpected or "train" not in value:
            raise FedkinError(f"client {name!r}: a split has the keys train, test and optionally validation")
        pairs = dict(value)
    else:
        pairs = {"all": value}
    data = {}
    for part, pair in pairs.items():
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise FedkinError(f"client {name!r}: expected a pair (X, y), got {type(pair).__name__}")
        x, y = as_array(name, "X", pair[0]), as_array(name, "y", pair[1])
        if not x.ndim or not y.ndim:
            raise FedkinError(f"client {name!r}: X and y need one entry per sample; got a single value")
        if x.dtype.kind not in "biuf":
            raise FedkinError(f"client {name!r}: X holds {x.dtype}, not numbers; encode it first")
        if x.ndim == 1:
            x = x[:, None]
        if len(x) != len(y):
            raise FedkinError(f"client {name!r}: X has {len(x)} rows but y has {len(y)}; they must match")
        if y.dtype.kind == "O" and any(v is None or v != v for v in y.ravel()):
            raise FedkinError(f"client {name!r}: y has missing targets; drop these rows")
        kept: Any = Unread.over(x) if mapped(x) else x
        data[part] = (kept, y)
    first = data.get("all", data.get("train"))
    if first is not None and len(first[0]) == 0:
        raise FedkinError(f"client {name!r} has no samples; drop it or give it data")
    return data


def common_shape(names: Sequence[str], given: Sequence[ByPart]) -> tuple[int, ...]:
    """The input shape that all clients have."""
    first = next(iter(given[0].values()))[0].shape[1:]
    for name, data in zip(names, given):
        for x, _ in data.values():
            if x.shape[1:] != first:
                raise FedkinError(
                    f"client {name!r}: its inputs have shape {x.shape[1:]}, but those of {names[0]!r} have {first}; "
                    "all clients need the same input shape"
                )
    return tuple(int(s) for s in first)


def read_public(given: Mapping[str, Any] | np.ndarray | None, shape: tuple[int, ...]) -> dict[str, np.ndarray] | None:
    """Public inputs by client name, (m, *shape) each; a single array is common to all (the name "*")."""
    if given is None:
        return None
    sets = {"*": given} if isinstance(given, np.ndarray) else given
    return {str(name): _public_set(str(name), np.asarray(x), shape) for name, x in sets.items()}


def _public_set(name: str, x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    whose = "the common public set" if name == "*" else f"client {name!r}: its public set"
    if x.ndim == 1 and shape == (1,):
        x = x[:, None]
    if x.shape[1:] != shape:
        raise FedkinError(f"{whose} has inputs of shape {x.shape[1:]}, but the clients' have {shape}")
    if not np.isfinite(x).all():
        raise FedkinError(f"{whose} holds NaN or infinity; drop or impute these values")
    return x
