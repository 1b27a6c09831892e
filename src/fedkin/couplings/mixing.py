"""Mixing: every client takes its own convex combination of rows. Directed, dense or sparse."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.couplings.coupling import Coupling
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
        weights: np.ndarray | torch.Tensor | sp.sparray,
        clients: int | None = None,
        members: np.ndarray | None = None,
    ) -> None:
        found = weights.numpy() if isinstance(weights, torch.Tensor) else weights
        size = found.shape[0]
        self.clients = size if clients is None else clients
        self.members = members if members is not None and len(members) < self.clients else None
        if found.shape != (size, size) or (size != self.clients if self.members is None else size != len(self.members)):
            raise FedkinError(f"Mixing needs one row and one column per client, not shape {found.shape}")
        values = found.data if sp.issparse(found) else found
        if not np.isfinite(values).all() or (values < 0).any() or not np.allclose(found.sum(axis=1), 1.0, atol=1e-6):
            raise FedkinError("Mixing weights must be finite and not negative, and every row must sum to 1")
        self.weights: sp.csr_array | np.ndarray = sp.csr_array(found) if sp.issparse(found) else np.asarray(found)

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        if self.members is None:
            return self._mixed(rows)
        mixed = rows.clone(memory_format=torch.contiguous_format)
        mixed[self.members] = self._mixed(rows[self.members])
        return mixed

    def _mixed(self, rows: torch.Tensor) -> torch.Tensor:
        if not sp.issparse(self.weights):
            return torch.as_tensor(self.weights, dtype=rows.dtype, device=rows.device) @ rows
        w = sp.csr_array(self.weights)
        sparse = torch.sparse_csr_tensor(
            torch.from_numpy(w.indptr.astype(np.int64)),
            torch.from_numpy(w.indices.astype(np.int64)),
            torch.from_numpy(w.data).to(rows.dtype),
            size=w.shape,
        )
        return sparse.to(rows.device) @ rows.contiguous()
