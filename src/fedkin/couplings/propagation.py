"""Propagation along a client graph: every layer replaces a row by the mean of its own and its neighbours' rows."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.couplings.coupling import Coupling
from fedkin.couplings.sparse import ClientMatrix
from fedkin.errors import FedkinError


def with_self_loops(adjacency: sp.csr_array) -> sp.csr_array:
    """Â = D⁻¹ (A + I), D the row sums of A + I: non-negative, rows sum to 1, (K, K).

    >>> with_self_loops(sp.csr_array(np.array([[0.0, 3.0], [3.0, 0.0]]))).toarray()
    array([[0.25, 0.75],
           [0.75, 0.25]])
    """
    looped = sp.csr_array(adjacency + sp.eye_array(adjacency.shape[0]))
    return sp.csr_array(sp.diags_array(1 / np.asarray(looped.sum(axis=1)).ravel()) @ looped)


class Propagation(Coupling):
    """M = Âˡ for a matrix Â (K, K) whose rows sum to 1. No layers, or a graph without edges: everyone keeps its row."""

    def __init__(self, step: sp.csr_array, layers: int) -> None:
        if layers < 0:
            raise FedkinError(f"Propagation: layers = {layers}; use 0 or more")
        self.clients, self.layers, self.step = step.shape[0], layers, ClientMatrix(step)

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        for _ in range(self.layers):
            rows = self.step.times(rows.contiguous())
        return rows
