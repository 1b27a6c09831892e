"""Couplings without a graph: everyone keeps its row, or everyone gets the average."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.couplings.coupling import Coupling, Group
from fedkin.errors import FedkinError


class Identity(Coupling):
    """M = I: every client keeps its own row."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        return self._check(rows)

    def sparse(self) -> sp.csr_array:
        return sp.csr_array(sp.eye_array(self.clients))


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
        taking_part = rows if everyone else rows[torch.as_tensor(self.members)]
        zeta = torch.as_tensor(self.zeta, dtype=rows.dtype, device=rows.device)
        return (zeta[None, :] @ taking_part).expand(self.clients, -1)

    def matrix(self) -> np.ndarray:
        one = np.zeros(self.clients)
        np.add.at(one, self.members, self.zeta)
        return np.tile(one, (self.clients, 1))

    def groups(self) -> Iterator[Group]:
        yield np.arange(self.clients), self.members, self.zeta


class ClusterAverage(Coupling):
    """Every row becomes the average of its cluster: Σ ζ_j w_j over the members j of the same cluster, ζ scaled to sum 1.

    `weights` (K,) as in `Average`, `clusters` (K,) any labels, `members` the rows that take part (default: all). Clients
    of a cluster none of whose members takes part keep their rows. One cluster: `Average`; one per client: `Identity`.

    >>> ClusterAverage([1, 3, 1], ["a", "a", "b"]).apply(torch.tensor([[0.0], [4.0], [7.0]])).ravel()
    tensor([3., 3., 7.])
    """

    def __init__(
        self,
        weights: Sequence[float] | np.ndarray,
        clusters: Sequence[object] | np.ndarray,
        members: Sequence[int] | np.ndarray | None = None,
    ) -> None:
        sizes = np.asarray(weights, dtype=np.float64)
        if len(clusters) != len(sizes):
            raise FedkinError(f"ClusterAverage has {len(clusters)} cluster labels for {len(sizes)} clients")
        self.clients = len(sizes)
        _, self.codes = np.unique(np.asarray(clusters), return_inverse=True)
        self.members = np.arange(len(sizes)) if members is None else np.asarray(members, dtype=np.int64)
        chosen, codes = sizes[self.members], self.codes[self.members]
        if not np.isfinite(chosen).all() or (chosen <= 0).any():
            raise FedkinError("ClusterAverage weights must be finite and positive for every member")
        self.totals = np.bincount(codes, chosen, minlength=int(self.codes.max(initial=0)) + 1)
        self.zeta = chosen / self.totals[codes]

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        codes = torch.as_tensor(self.codes)
        zeta = torch.as_tensor(self.zeta, dtype=rows.dtype)[:, None]
        centres = rows.new_zeros((len(self.totals), rows.shape[1]))
        centres.index_add_(0, codes[self.members], rows[self.members] * zeta)
        reached = torch.as_tensor(self.totals > 0)[codes]
        return torch.where(reached[:, None], centres[codes], rows)
