"""The Laplacian step of FedU: every client moves towards its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.compute.memory import uninitialised
from fedkin.compute.threads import one_thread
from fedkin.couplings.coupling import Coupling
from fedkin.couplings.sparse import ClientMatrix
from fedkin.errors import FedkinError, unknown
from fedkin.graphs import ClientGraph

Neighbours = Literal["sampled", "all"]


class LaplacianStep(Coupling):
    """One simultaneous step down the graph's total variation (FedU, server step):

        w_k ← w_k − step · Σ_{l ∈ M_k} a_kl (w_k − w_l)   for k in the cohort;   all other rows stay.

    `step` is c·μ̃·η in the paper: one number, or one per client (K,), used by the client that moves. `cohort` are the
    rows that took part this round (default: all). `neighbours` says who pulls: `sampled`, the neighbours in the cohort
    (then, with one step for all, the mean of the cohort is preserved), or `all` neighbours with the rows they were last
    known to have.

    >>> pair = ClientGraph([[0, 1], [1, 0]])
    >>> LaplacianStep(pair, step=0.25).apply(torch.tensor([[0.0], [4.0]]))
    tensor([[1.],
            [3.]])

    Reference: Dinh et al., A New Look and Convergence Rate of Federated Multi-Task Learning with Laplacian
    Regularization, 2021.
    """

    def __init__(
        self,
        graph: ClientGraph,
        step: float | np.ndarray,
        cohort: Sequence[int] | np.ndarray | None = None,
        neighbours: Neighbours = "sampled",
    ) -> None:
        if np.shape(step) not in ((), (len(graph),)) or not np.isfinite(step).all() or np.min(step, initial=0) < 0:
            raise FedkinError(f"the Laplacian step must be a finite number ≥ 0, or one per client, not {step!r}")
        if neighbours not in get_args(Neighbours):
            raise unknown("neighbour rule", neighbours, get_args(Neighbours))
        self.graph, self.step, self.clients = graph, step, len(graph)
        self.cohort = None if cohort is None else np.asarray(cohort, dtype=np.int64)
        if self.cohort is not None and len(np.unique(self.cohort)) != len(self.cohort):
            raise FedkinError("a client is in the cohort twice")
        steps = np.broadcast_to(np.asarray(step, dtype=np.float64), (len(graph),))
        self._reads: np.ndarray | None = None
        """With `all` neighbours: the clients whose rows are read, ascending."""
        if self.cohort is None:
            self._operator = ClientMatrix(_step_matrix(graph.adjacency, steps, np.arange(len(graph))))
        elif neighbours == "all":
            wide = ClientMatrix(_step_matrix(graph.adjacency[self.cohort], steps[self.cohort], self.cohort))
            self._reads, self._operator = (np.arange(len(graph)), wide) if wide.dense else wide.narrowed()
        else:
            among = _among(graph.adjacency, self.cohort)
            self._operator = ClientMatrix(_step_matrix(among, steps[self.cohort], np.arange(len(self.cohort))))

    def apply(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """(I − step·L_S) Ω; into `out` if given."""
        rows = self._check(rows).contiguous()
        if self.cohort is None:
            return self._operator.times(rows, out)
        chosen = torch.as_tensor(self.cohort)
        moved = self.moved(rows, rows[chosen])
        out = (uninitialised((rows.shape[0], rows.shape[1]), rows.dtype) if out is None else out).copy_(rows)
        out[chosen] = moved
        return out

    def sparse(self) -> sp.csr_array:
        if self.cohort is None:
            return self._operator.csr
        read = self.cohort if self._reads is None else self._reads
        step = sp.coo_array(self._operator.csr)
        absent = np.setdiff1d(np.arange(self.clients), self.cohort)
        data = np.concatenate([step.data, np.ones(len(absent))])
        at = np.concatenate([self.cohort[step.row], absent]), np.concatenate([read[step.col], absent])
        return sp.csr_array((data, at), shape=(self.clients, self.clients))

    def moved(self, rows: torch.Tensor, trained: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The cohort's rows after the step, (k, B), from its `trained` rows (k, B) and the `rows` (K, B) of the others.

        Only rows of neighbours are read, and with `sampled` neighbours none. Into `out` if given, which may be `rows`
        when everyone is in the cohort.
        """
        if not len(trained):
            return trained
        read = trained
        if self.cohort is not None and self._reads is not None:
            read = rows[torch.as_tensor(self._reads)]
            read[torch.as_tensor(np.searchsorted(self._reads, self.cohort))] = trained
        return self._operator.times(read, out)


def _among(adjacency: sp.csr_array, chosen: np.ndarray) -> sp.csr_array:
    """The rows and columns of the chosen clients, in their order."""
    place = np.full(adjacency.shape[1], -1, dtype=adjacency.indices.dtype)
    place[chosen] = np.arange(len(chosen))
    rows = adjacency[chosen]
    column = place[rows.indices]
    kept = column >= 0
    indptr = np.concatenate([[0], np.cumsum(kept)])[rows.indptr].astype(rows.indptr.dtype)
    return sp.csr_array((rows.data[kept], column[kept], indptr), shape=(len(chosen), len(chosen)))


def _step_matrix(adjacency: sp.csr_array, steps: np.ndarray, own: np.ndarray) -> sp.csr_array:
    """E − diag(steps)·(D − A), where row i of A belongs to column own[i] and E, D are diagonal along these columns."""
    n, k = adjacency.shape
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    stay = sp.csr_array((1 - steps * degrees, (np.arange(n), own)), shape=(n, k))
    return sp.csr_array(stay + sp.diags_array(steps, format="csr") @ adjacency)


def safe_step(graph: ClientGraph) -> float:
    """The largest step for which the Laplacian step does not expand differences: 2 / λ_max (infinite without edges)."""
    largest = graph.lambda_max()
    return 2 / largest if largest > 0 else float("inf")


def stability(graph: ClientGraph, step: float) -> float:
    """step · λ_max(L): at most 1, differences shrink monotonically; at most 2, they do not grow; above 2 they can.

    >>> round(stability(ClientGraph([[0, 1], [1, 0]]), step=0.5), 6)
    1.0
    """
    return float(step * graph.lambda_max())


def total_variation(rows: torch.Tensor, graph: ClientGraph) -> float:
    """tr(ΩᵀLΩ) = ½ Σ_kl a_kl ‖w_k − w_l‖²: how much related clients differ.

    >>> total_variation(torch.tensor([[0.0], [2.0]]), ClientGraph([[0, 1], [1, 0]]))
    4.0
    """
    return total_variations(graph, rows)[0]


@lru_cache(maxsize=1)
def _matrix(graph: ClientGraph) -> ClientMatrix:
    """L of the last graph that was asked for: it is that of the whole run."""
    return ClientMatrix(graph.laplacian())


def total_variations(graph: ClientGraph, *several: torch.Tensor) -> list[float]:
    """The total variation of each of several rows (K, B)."""
    laplacian, found = _matrix(graph), []
    clients = len(graph)
    width = max(16, 2**17 // max(1, clients))  # blocks that stay in the cache
    with one_thread(clients < 20_000):
        for rows in several:
            # Subtracting the mean row changes nothing (L·1 = 0) and saves digits when clients nearly agree.
            total, mean = 0.0, rows.mean(dim=0)
            for at in range(0, rows.shape[1], width):
                centred = rows[:, at : at + width] - mean[at : at + width]
                total += float(torch.dot(centred.view(-1), laplacian.times(centred).view(-1)))
            found.append(max(total, 0.0))  # in this order NaN stays NaN
    return found
