"""Clipped updates with noise: what a coupling hands out hides whether one client took part at all."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.couplings.coupling import Coupling
from fedkin.privacy.noise import SecretStream

RANK = 1e-9
"""Singular values below this share of the largest are rounding."""


def leverage(coupling: Coupling) -> np.ndarray:
    """How much of each client's row can be told from all rows that the coupling hands out together, h (K,), 0 to 1.

    With noise of one size s in every row, Ψ = M(Ω + Z) tells of client j no more than one number with noise s/√h_j, where h_j is the
    squared length of the projection of e_j on the rows of M: all that M loses, nobody can learn. An average of m rows
    has h = 1/m; an invertible M has h = 1, because everybody together can undo it.
    """
    rows = []
    for _, members, weights in coupling.groups():
        row = np.zeros(coupling.clients)
        row[members] = weights
        rows.append(row)
    _, values, basis = np.linalg.svd(np.stack(rows), full_matrices=False)
    return np.square(basis[values > RANK * values.max(initial=1e-300)]).sum(axis=0)


class Noisy(Coupling):
    """Ψ = M (Ω₀ + clip_C(Ω − Ω₀) + Z), Z ~ N(0, s²) in the rows of those who trained, s = σ·C·√max h.

    Ω₀ are the rows that clients received, which everybody may know; s makes the noise in what is handed out as large, beside what
    one client can change, as that of a Gaussian mechanism with multiplier σ.
    """

    linear = False

    def __init__(
        self,
        coupling: Coupling,
        before: torch.Tensor,
        ids: np.ndarray,
        clip: float,
        noise: float,
        insecure: int | None = None,
    ) -> None:
        self.coupling, self.before, self.ids, self.clip, self.noise = coupling, before, ids, clip, noise
        self.insecure, self.clients = insecure, coupling.clients

    @cached_property
    def scale(self) -> float:
        """s, the standard deviation of the noise in a client's row."""
        return self.noise * self.clip * float(np.sqrt(leverage(self.coupling)[self.ids].max()))

    @property
    def shares(self) -> sp.csr_array:  # type: ignore[override]
        return self.coupling.sparse()

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        rows = self._check(rows)
        moved = rows - self.before
        moved.mul_(self.clip / moved.norm(dim=1, keepdim=True).clamp_min(self.clip))
        stream, drawn = SecretStream(self.insecure), torch.empty(rows.shape[1])
        for k in self.ids:
            stream.fill(drawn, self.scale)
            moved[int(k)] += drawn.to(rows.dtype)
        return self.coupling.apply(self.before + moved)
