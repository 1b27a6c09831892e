"""Graph total variation: a denoiser that keeps jumps between groups of clients, not a linear filter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.couplings.coupling import Coupling
from fedkin.couplings.filters import shares
from fedkin.couplings.sparse import to_torch
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph


class GraphTotalVariation(Coupling):
    """Ψ = argmin ½ Σ_k z_k ‖ψ_k − ω_k‖² + s Σ_{edges} a_kl ‖ψ_k − ψ_l‖,  z = K·ζ.

    The norm is that of the whole difference (one group per edge), so neighbours become exactly equal or differ in all
    parameters: clients fall into clusters with one model each as the strength s grows, the size-weighted mean of a
    component at the end. s = 0 keeps every row.

    Solved in the dual by accelerated projected gradient (FISTA with restart) until the duality gap certifies a root
    mean square error below `tolerance` times the spread of the rows. Distances between rows do not change
    under rotation, so with fewer clients than parameters the problem is solved in K dimensions whatever B is.

    References: Beck and Teboulle 2009 (FISTA); Hallac, Leskovec and Boyd 2015 (network lasso).
    """

    linear = False

    def __init__(
        self,
        graph: ClientGraph,
        strength: float,
        sizes: Sequence[float] | np.ndarray | None = None,
        tolerance: float = 1e-5,
        iterations: int = 20_000,
    ) -> None:
        if not np.isfinite(strength) or strength < 0:
            raise FedkinError(f"graph total variation: strength must be finite and not negative, not {strength!r}")
        self.graph, self.clients, self.strength = graph, len(graph), float(strength)
        self.tolerance, self.iterations = tolerance, iterations
        self.fidelity = torch.as_tensor(len(graph) * shares(sizes, graph))
        edges = sp.triu(graph.adjacency, format="coo")
        self.ends = edges.row, edges.col
        ends, signs = np.concatenate([edges.row, edges.col]), np.repeat([1.0, -1.0], edges.nnz)
        difference = sp.csr_array((signs, (np.tile(np.arange(edges.nnz), 2), ends)), shape=(edges.nnz, self.clients))
        self._difference, self._spread = (to_torch(sp.csr_array(m), torch.float64) for m in (difference, difference.T))
        self._radius = torch.as_tensor(self.strength * edges.data)
        # ‖Z^{-1/2}Dᵀ‖² ≤ the largest sum over an edge's two ends of (number of neighbours)/z.
        load = np.diff(graph.adjacency.indptr) / self.fidelity.cpu().numpy()
        self._lipschitz = float((load[edges.row] + load[edges.col]).max()) if edges.nnz else 0.0

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        if self.strength == 0 or self._lipschitz == 0:
            return rows.clone()
        exact = rows.double()
        if self.clients < rows.shape[1]:
            basis, coordinates = torch.linalg.qr(exact.T)
            return (self._solve(coordinates.T.contiguous()) @ basis.T).to(rows.dtype)
        return self._solve(exact.contiguous()).to(rows.dtype)

    def matrix(self) -> np.ndarray:
        raise FedkinError(
            "graph total variation is not linear: what clients take from each other depends on their rows, there is no "
            "matrix; use a linear denoiser (soft, tikhonov, heat, hard) to have one"
        )

    def pull(self, dual: torch.Tensor) -> torch.Tensor:
        """Dᵀy: what the dual (edges, B) takes from each client's row, (K, B)."""
        return (self._spread @ dual.double()).to(dual.dtype)

    def ascended(self, dual: torch.Tensor, rows: torch.Tensor, step: float) -> torch.Tensor:
        """Each y_e + step·(ψ_k − ψ_l), drawn back to ‖y_e‖ ≤ s·a_e: a step up the dual at the rows ψ (K, B)."""
        ahead = dual.double() + step * (self._difference @ rows.double())
        ahead *= (self._radius / ahead.norm(dim=1).clamp_min(1e-300)).clamp(max=1.0)[:, None]
        return ahead.to(dual.dtype)

    def _solve(self, rows: torch.Tensor) -> torch.Tensor:
        """FISTA on the dual: y (one vector per edge, ‖y_e‖ ≤ s·a_e), with ψ = ω − Z⁻¹Dᵀy."""
        z = self.fidelity[:, None]
        centred = rows - (z * rows).sum(dim=0) / z.sum()
        # ½ min(z) ‖ψ − ψ*‖² ≤ gap
        enough = 0.5 * float(z.min()) * self.tolerance**2 * float(centred.square().sum())
        y = momentum = torch.zeros(len(self._radius), rows.shape[1], dtype=torch.float64)
        weight, step = 1.0, 1 / self._lipschitz
        for iteration in range(self.iterations):
            ahead = self.ascended(momentum, rows - self.pull(momentum) / z, step)
            move = ahead - y
            if float(((momentum - ahead) * move).sum()) > 0:  # overshot: drop the momentum
                weight = 1.0
            after = (1 + (1 + 4 * weight**2) ** 0.5) / 2
            momentum = ahead + (weight - 1) / after * move
            y, weight = ahead, after
            if iteration % 10 == 9 and self._gap(rows, y) <= enough:
                break
        return rows - self.pull(y) / z

    def _gap(self, rows: torch.Tensor, y: torch.Tensor) -> float:
        """Primal minus dual value: Σ_e (s·a_e ‖ψ_k − ψ_l‖ − ⟨y_e, ψ_k − ψ_l⟩) at ψ = ω − Z⁻¹Dᵀy."""
        jumps = self._difference @ (rows - self.pull(y) / self.fidelity[:, None])
        return float(self._radius @ jumps.norm(dim=1) - (y * jumps).sum())
