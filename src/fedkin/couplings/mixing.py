"""Mixing: every client takes its own convex combination of rows. Directed, dense or sparse."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.couplings.coupling import Coupling
from fedkin.couplings.sparse import ClientMatrix
from fedkin.errors import FedkinError


class Mixing(Coupling):
    """Ψ = A Ω with A ≥ 0 and rows that sum to 1: entry (i, j) is the share of client j's row in client i's.

    A (K, K) need not be symmetric; a NumPy array, a torch tensor or a SciPy sparse array. With `members` A is (m, m) over
    these clients alone, and the others keep their rows. A = I is `Identity`; equal rows ζᵀ are `Average`.

    >>> Mixing(np.array([[0.5, 0.5], [0.0, 1.0]])).apply(torch.tensor([[0.0], [4.0]])).ravel()
    tensor([2., 4.])
    """

    def __init__(
        self,
        weights: np.ndarray | torch.Tensor | sp.csr_array,
        clients: int | None = None,
        members: np.ndarray | None = None,
    ) -> None:
        self.weights = sp.csr_array(weights.cpu().numpy() if isinstance(weights, torch.Tensor) else weights)
        size = int(self.weights.shape[0])
        self.clients = size if clients is None else clients
        self.members = members if members is not None and len(members) < self.clients else None
        if self.weights.shape != (size, size) or size != (self.clients if self.members is None else len(self.members)):
            raise FedkinError(f"Mixing needs one row and one column per client, not shape {self.weights.shape}")
        values, total = self.weights.data, np.asarray(self.weights.sum(axis=1))
        if not np.isfinite(values).all() or (values < 0).any() or not np.allclose(total, 1.0, atol=1e-6):
            raise FedkinError("Mixing weights must be finite and not negative, and every row must sum to 1")
        self._operator = ClientMatrix(self.weights)

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        if self.members is None:
            return self._operator.times(rows.contiguous())
        mixed = rows.clone(memory_format=torch.contiguous_format)
        mixed[self.members] = self._operator.times(rows[self.members])
        return mixed

    def sparse(self) -> sp.csr_array:
        if self.members is None:
            return self.weights
        weights = sp.coo_array(self.weights)
        absent = np.setdiff1d(np.arange(self.clients), self.members)
        data = np.concatenate([weights.data, np.ones(len(absent))])
        at = np.append(self.members[weights.row], absent), np.append(self.members[weights.col], absent)
        return sp.csr_array((data, at), shape=(self.clients, self.clients))
