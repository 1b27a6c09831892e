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

from fedkin.compute.memory import uninitialised
from fedkin.couplings.sparse import to_torch
from fedkin.errors import FedkinError

Columns = Callable[[torch.Tensor], torch.Tensor]

BLOCK = 2**25
"""Bytes of one block of columns: several of them fit the last-level cache, and the allocator reuses pieces of this size
instead of returning them to the system."""


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
        width = max(16, BLOCK // (rows.dtype.itemsize * self.clients) // 16 * 16)
        order, back = torch.as_tensor(self.order), torch.as_tensor(np.argsort(self.order))
        out = uninitialised((rows.shape[0], rows.shape[1]), rows.dtype)
        for at in range(0, rows.shape[1], width):
            block = rows[:, at : at + width].index_select(0, order)
            out[:, at : at + width] = solve(block).index_select(0, back)
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
    z = fidelity[ordered.order]
    if (z <= 0).any():
        raise FedkinError("size-weighted filtering needs a positive number of samples for every client")
    lap = ordered.laplacian
    degrees = lap.diagonal()
    d = z + beta1 * degrees + beta2 * np.asarray(lap.multiply(lap).sum(axis=1)).ravel()  # the diagonal of the system
    # Scaled on both sides by d^{-1/2}, the system is diag(z/d) + F E, two sparse products that absorb all scalings.
    scale = sp.diags_array(1 / np.sqrt(d), format="csr")
    inner = sp.csr_array((beta1 * sp.eye_array(len(d), format="csr") + beta2 * lap) @ scale) if beta2 else beta1 * scale
    sparse = [sp.csr_array(inner), sp.csr_array(scale @ lap)]
    # Rounding in float32 grows with the condition number; beyond this it would pass 1e-5, and float64 is used inside.
    stiff = 1 + (beta1 + beta2 * 2 * degrees.max()) * 2 * degrees.max() / z.min() > 1_000
    typed: dict[torch.dtype, list[torch.Tensor]] = {}

    def solve(rows: torch.Tensor) -> torch.Tensor:
        b = rows.double() if stiff else rows
        if b.dtype not in typed:
            columns = (torch.as_tensor(v).to(b.dtype)[:, None] for v in (z, z / d, np.sqrt(d)))
            typed[b.dtype] = [*(to_torch(matrix, b.dtype) for matrix in sparse), *columns]
        first, second, own, diagonal, root = typed[b.dtype]
        middle, q, scratch = torch.empty_like(b), torch.empty_like(b), torch.empty_like(b)

        def smoothness(p: torch.Tensor, into: torch.Tensor, keep: float) -> torch.Tensor:
            """keep·into + F E p: the scaled β₁L + β₂L²."""
            torch.addmm(middle, first, p, beta=0, out=middle)
            return torch.addmm(into, second, middle, beta=keep, out=into)

        def dot(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:  # seven times faster than norm(dim=0)
            return torch.mul(u, v, out=scratch).sum(dim=0)

        accuracy = tolerance or (1e-6 if rows.dtype == torch.float32 else 1e-12)
        weighted = own * b
        limit = accuracy**2 * dot(weighted, weighted) / float(d.max())  # of ‖r‖², in the scaled norm
        x = root * b
        r = smoothness(x, torch.empty_like(b), 0).neg_()
        p = r.clone()
        size, tiny = dot(r, r), torch.finfo(b.dtype).tiny
        for _ in range(most):
            if bool((size <= limit).all()):
                break
            smoothness(p, torch.mul(diagonal, p, out=q), 1)
            alpha = size / dot(p, q).clamp_min(tiny)
            x.addcmul_(p, alpha)
            r.addcmul_(q, alpha, value=-1)
            size, last = dot(r, r), size
            torch.addcmul(r, p, size / last.clamp_min(tiny), out=p)
        else:
            raise FedkinError(
                f"conjugate gradient did not converge in {most} iterations: the strength ({beta1:g}, {beta2:g}) is so "
                "large that rows become the mean; use a smaller one, or Average"
            )
        return (x / root).to(rows.dtype)

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
