"""Filters on large graphs: conjugate gradient and Chebyshev polynomials, a block of columns at a time.

Nothing of size K×K is formed. Clients are renumbered so that neighbours are near each other (reverse Cuthill–McKee) and
columns are taken in blocks narrow enough for the working set to stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import reverse_cuthill_mckee

from fedkin.couplings.sparse import empty, to_torch
from fedkin.errors import FedkinError

Columns = Callable[[torch.Tensor], torch.Tensor]


class Ordered:
    """A Laplacian with its clients renumbered for locality; applies column solvers block by block."""

    def __init__(self, laplacian: sp.csr_array) -> None:
        self.clients = laplacian.shape[0]
        order = reverse_cuthill_mckee(sp.csr_matrix(laplacian), symmetric_mode=True)
        self.order = order.astype(np.int64)
        self.laplacian = sp.csr_array(laplacian[self.order][:, self.order])
        self.laplacian.sort_indices()

    def blocked(self, solve: Columns, rows: torch.Tensor) -> torch.Tensor:
        """`solve` on every block of columns of `rows` (K, B), clients in the inner order."""
        width = max(8, 2**24 // (rows.dtype.itemsize * self.clients))
        order = torch.from_numpy(self.order)
        out = empty((rows.shape[0], rows.shape[1]), rows.dtype)
        for at in range(0, rows.shape[1], width):
            out[order, at : at + width] = solve(rows[:, at : at + width][order])
        return out


def conjugate_gradient(
    ordered: Ordered,
    fidelity: np.ndarray,
    beta1: float,
    beta2: float,
    tolerance: float | None = None,
    most: int = 2_000,
) -> Columns:
    """x = (Z + β₁L + β₂L²)⁻¹ Z b for every column b, Z = diag(fidelity), by Jacobi-preconditioned conjugate gradient.

    Because the matrix is at least Z, a residual of `tolerance`·‖Zb‖ leaves an error of about `tolerance`·‖b‖ (default
    1e-6 in float32, 1e-12 in float64). The iteration starts from x = b, the solution at β = 0.
    """
    own = fidelity[ordered.order]
    if (own <= 0).any():
        raise FedkinError("size-weighted filtering needs a positive number of samples for every client")
    lap = ordered.laplacian
    degrees = lap.diagonal()
    squared = np.asarray(lap.multiply(lap).sum(axis=1)).ravel()
    inverse = 1 / (own + beta1 * degrees + beta2 * squared)
    typed: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    # Rounding in float32 grows with the condition number; beyond this it would pass 1e-5, and float64 is used inside.
    stiff = 1 + (beta1 + beta2 * 2 * degrees.max()) * 2 * degrees.max() / own.min() > 1_000

    def solve(rows: torch.Tensor) -> torch.Tensor:
        b = rows.double() if stiff else rows
        if b.dtype not in typed:
            weights, scale = (torch.from_numpy(a).to(b.dtype)[:, None] for a in (own, inverse))
            typed[b.dtype] = (to_torch(lap, b.dtype), weights, scale)
        laplacian, z, precondition = typed[b.dtype]
        spread = torch.empty_like(b)

        def system(p: torch.Tensor) -> torch.Tensor:
            if beta2:
                inner = torch.addmm(p, laplacian, p, beta=beta1, alpha=beta2, out=spread)
                return torch.addmm(z * p, laplacian, inner)
            return torch.addmm(z * p, laplacian, p, alpha=beta1)

        limit = (tolerance or (1e-6 if rows.dtype == torch.float32 else 1e-12)) * (z * b).norm(dim=0)
        tiny = torch.finfo(b.dtype).tiny
        x = b.clone()
        r = z * b - system(x)
        s = precondition * r
        p = s.clone()
        rho = (r * s).sum(dim=0)
        for _ in range(most):
            if bool((r.norm(dim=0) <= limit).all()):
                break
            q = system(p)
            alpha = rho / (p * q).sum(dim=0).clamp_min(tiny)
            x.addcmul_(p, alpha)
            r.addcmul_(q, alpha, value=-1)
            torch.mul(precondition, r, out=s)
            rho, last = (r * s).sum(dim=0), rho
            p.mul_(rho / last.clamp_min(tiny)).add_(s)
        else:
            raise FedkinError(
                f"conjugate gradient did not converge in {most} iterations: the strength ({beta1:g}, {beta2:g}) is so "
                "large that rows become the mean; use a smaller one, or Average"
            )
        return x.to(rows.dtype)

    return solve


def chebyshev(
    ordered: Ordered, response: Callable[[np.ndarray], np.ndarray], bound: float, tolerance: float = 1e-7
) -> Columns:
    """x = h(L) b for every column b, h replaced by its Chebyshev interpolant on [0, bound], bound ≥ λ_max.

    The degree is doubled until the last coefficients fall below `tolerance` times the largest.
    """
    coefficients = _interpolant(response, bound, tolerance)
    clients = ordered.clients
    half = bound / 2
    shifted = sp.csr_array(ordered.laplacian / half - sp.eye_array(clients, format="csr")) if half else None
    typed: dict[torch.dtype, torch.Tensor] = {}

    def solve(b: torch.Tensor) -> torch.Tensor:
        if shifted is None:
            return b * float(response(np.zeros(1))[0])
        if b.dtype not in typed:
            typed[b.dtype] = to_torch(shifted, b.dtype)
        matrix = typed[b.dtype]
        before, now = b.clone(), matrix @ b
        x = before * coefficients[0] + now * coefficients[1]
        for coefficient in coefficients[2:]:
            # T_{k+1} = 2 L̃ T_k − T_{k−1}, written over T_{k−1}
            before, now = now, torch.addmm(before, matrix, now, beta=-1, alpha=2, out=before)
            x.add_(now, alpha=float(coefficient))
        return x

    return solve


def _interpolant(response: Callable[[np.ndarray], np.ndarray], bound: float, tolerance: float) -> np.ndarray:
    for degree in (16, 32, 64, 128, 256, 512, 1024):
        nodes = np.polynomial.chebyshev.chebpts1(degree + 1)
        sampled = response((nodes + 1) * bound / 2)
        c = np.polynomial.chebyshev.chebvander(nodes, degree).T @ sampled * 2 / (degree + 1)
        c[0] /= 2
        large = np.flatnonzero(abs(c) > tolerance * abs(c).max())
        last = int(large[-1]) if len(large) else 0
        if last < degree - 4:
            return c[: max(last + 1, 2)]
    raise FedkinError(
        "the denoiser's response is too abrupt for a polynomial on a graph this large; use a smoother response or soft"
    )
