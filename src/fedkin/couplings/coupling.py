"""Coupling: how rows mix over the client axis."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from fedkin.errors import FedkinError


class Coupling(ABC):
    """An operator over clients: Ψ = M Ω.

    `apply` takes the stacked rows Ω of shape (K, B) and returns Ψ of the same shape and dtype; the input is never
    changed. `matrix` is M itself, shape (K, K): entry (i, j) says how much of client j's row enters client i's.
    """

    clients: int
    """K, how many rows it couples."""
    linear: bool = True
    """Whether there is a matrix M that does not depend on the rows."""

    @abstractmethod
    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """M Ω, shape (K, B)."""

    def matrix(self) -> np.ndarray:
        """M, shape (K, K), float64: what the operator does to the identity."""
        return self.apply(torch.eye(self.clients, dtype=torch.float64)).numpy().copy()

    def _check(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.ndim != 2 or rows.shape[0] != self.clients or not rows.is_floating_point():
            raise FedkinError(
                f"{type(self).__name__} couples the rows of {self.clients} clients: it needs a floating-point tensor "
                f"of shape ({self.clients}, B), not {rows.dtype} of shape {tuple(rows.shape)}"
            )
        return rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.clients} clients)"
