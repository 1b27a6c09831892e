"""Rescaling: how stored samples become the inputs of a model, batch by batch, so that no float copy of them is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.errors import FedkinError


@dataclass(frozen=True, eq=False)
class Rescaling:
    """input = (stored · factor − shift) / spread, each number in float32 (float64 where that is stored).

    `shift` and `spread` have the shape of one input, or None where there is nothing to subtract or to divide by.

    >>> Rescaling(1 / 255)(np.array([[0, 255]], dtype=np.uint8))
    array([[0., 1.]], dtype=float32)
    """

    factor: float = 1.0
    shift: np.ndarray | None = None
    spread: np.ndarray | None = None

    @property
    def plain(self) -> bool:
        """Whether stored numbers are the inputs, whatever their type."""
        return self.factor == 1.0 and self.shift is None and self.spread is None

    def __call__(self, stored: np.ndarray) -> np.ndarray:
        """Inputs (n, *shape) of stored samples (n, *shape)."""
        if self.plain:
            return stored
        x: Any = stored.astype(np.float64 if stored.dtype == np.float64 else np.float32)
        x *= x.dtype.type(self.factor)
        if self.shift is not None:
            x -= self.shift.astype(x.dtype, copy=False)
        if self.spread is not None:
            x /= self.spread.astype(x.dtype, copy=False)
        return np.asarray(x)

    def flat(self, shape: tuple[int, ...]) -> Rescaling:
        """The same for inputs of this shape whose numbers are in one line."""

        def line(values: np.ndarray | None) -> np.ndarray | None:
            return None if values is None else np.broadcast_to(values, shape).reshape(-1)

        return Rescaling(self.factor, line(self.shift), line(self.spread))


def read_scaling(given: Any) -> Rescaling:
    """What a user gives as `scaling`: a number to multiply by, a `Rescaling`, or None for numbers as they are stored."""
    if given is None or isinstance(given, Rescaling):
        return given or Rescaling()
    number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    if not number or not math.isfinite(given) or given == 0:
        raise FedkinError(f"scaling is {given!r}; give the number that stored values are multiplied by, such as 1/255")
    return Rescaling(float(given))
