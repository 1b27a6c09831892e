"""Coupling: how rows mix over the client axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.errors import FedkinError

Group = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Clients that get the same row, the clients it is made of, and their weights."""


class Coupling(ABC):
    """An operator over clients: Ψ = M Ω.

    `apply` takes the stacked rows Ω of shape (K, B) and returns Ψ of the same shape and dtype; the input is never
    changed. `matrix` is M itself, shape (K, K): entry (i, j) says how much of client j's row enters client i's.
    """

    clients: int
    """K, how many rows it couples."""
    linear: bool = True
    """Whether there is a matrix M that does not depend on the rows."""
    shares: sp.csr_array | None = None
    """Of a coupling that is not linear: the matrix the last rows came to, (K, K), where it can tell."""

    @abstractmethod
    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """M Ω, shape (K, B)."""

    def matrix(self) -> np.ndarray:
        """M, shape (K, K), float64: what the operator does to the identity."""
        return self.apply(torch.eye(self.clients, dtype=torch.float64)).cpu().numpy().copy()

    def sparse(self) -> sp.csr_array:
        """M as a sparse matrix."""
        return sp.csr_array(self.matrix())

    def groups(self) -> Iterator[Group]:
        """The distinct rows of M, up to rounding: who gets it, which clients it is made of, with which weights."""
        matrix, alike = self.sparse(), dict[bytes, list[int]]()
        matrix.sort_indices()
        entries = [slice(*matrix.indptr[k : k + 2]) for k in range(self.clients)]
        for k, own in enumerate(entries):
            alike.setdefault(matrix.indices[own].tobytes() + np.round(matrix.data[own], 12).tobytes(), []).append(k)
        for clients in alike.values():
            own = entries[clients[0]]
            yield np.array(clients), matrix.indices[own].astype(np.int64), matrix.data[own].astype(np.float64)

    def _check(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.ndim != 2 or rows.shape[0] != self.clients or not rows.is_floating_point():
            raise FedkinError(
                f"{type(self).__name__} couples the rows of {self.clients} clients: it needs a floating-point tensor "
                f"of shape ({self.clients}, B), not {rows.dtype} of shape {tuple(rows.shape)}"
            )
        return rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.clients} clients)"
