"""Couplings without a graph: everyone keeps its row, or everyone gets the average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedkin.couplings.coupling import Coupling
from fedkin.errors import FedkinError


class Identity(Coupling):
    """M = I: every client keeps its own row."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        return self._check(rows)


class Average(Coupling):
    """M = 1·ζᵀ: every row becomes Σ_{j ∈ members} ζ_j w_j, with ζ the weights of the members scaled to sum 1.

    `weights` (K,) are usually the clients' numbers of samples; `members` are the rows that take part (default: all).
    Other rows are not read, so they may hold anything. The result is one row seen K times (`expand`).

    >>> Average([1, 3]).apply(torch.tensor([[0.0], [4.0]]))
    tensor([[3.],
            [3.]])
    """

    def __init__(
        self, weights: Sequence[float] | np.ndarray, members: Sequence[int] | np.ndarray | None = None
    ) -> None:
        sizes = np.asarray(weights, dtype=np.float64)
        if sizes.ndim != 1:
            raise FedkinError(f"Average weights must be one number per client, not of shape {sizes.shape}")
        self.clients = len(sizes)
        self.members = np.arange(len(sizes)) if members is None else np.asarray(members, dtype=np.int64)
        chosen = sizes[self.members]
        if not np.isfinite(chosen).all() or (chosen < 0).any() or chosen.sum() <= 0:
            raise FedkinError("Average weights must be finite, not negative, and not all zero among the members")
        self.zeta = chosen / chosen.sum()

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        everyone = len(self.members) == self.clients and (np.diff(self.members) == 1).all()
        taking_part = rows if everyone else rows[torch.from_numpy(self.members)]
        zeta = torch.as_tensor(self.zeta, dtype=rows.dtype, device=rows.device)
        return (zeta[None, :] @ taking_part).expand(self.clients, -1)

    def matrix(self) -> np.ndarray:
        one = np.zeros(self.clients)
        np.add.at(one, self.members, self.zeta)
        return np.tile(one, (self.clients, 1))
