"""Eigenvalues of graph Laplacians: all of them for small graphs, the ends of the spectrum for large ones."""

from __future__ import annotations

import numpy as np
import scipy  # its parts are imported when they are first used
import scipy.sparse as sp

from fedkin.errors import FedkinError

DECOMPOSITION_LIMIT = 5_000
"""The most clients whose eigenvalues are all computed (a dense K×K matrix, K³ operations, once)."""

VERY_LARGE = 200_000
"""Above this many clients λ_max is known to two digits."""


def eigen(laplacian: sp.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """All eigenvalues (ascending, tiny negative ones set to 0) and orthonormal eigenvectors, by LAPACK."""
    clients = laplacian.shape[0]
    if clients > DECOMPOSITION_LIMIT:
        raise FedkinError(
            f"a full eigendecomposition of {clients:,} clients would need {16 * clients**2 / 2**30:.0f} GiB "
            f"(limit: {DECOMPOSITION_LIMIT:,} clients); use lambda_max(), lambda_1() or a filter that needs none, such as soft"
        )
    values, vectors = scipy.linalg.eigh(laplacian.toarray())
    rounding = clients * np.finfo(float).eps * values.max(initial=0.0)
    return np.where(values < rounding, 0.0, values), vectors


def smallest(laplacian: sp.csr_array, count: int, components: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The `count` smallest eigenvalues and their eigenvectors, shape (count,) and (K, count), by Lanczos.

    The zero modes are known: one constant per connected component (`components`, labels, at most `count` of them). The
    others are the dominant modes of cI − L, c ≥ λ_max, once the zero modes are moved out of the way.
    """
    clients = laplacian.shape[0]
    flat = np.zeros((clients, int(components.max()) + 1))
    flat[np.arange(clients), components] = 1
    flat /= np.sqrt(flat.sum(axis=0))
    more = count - flat.shape[1]
    if more <= 0:
        return np.zeros(flat.shape[1]), flat
    top = 2 * float(laplacian.diagonal().max())
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    flipped = LinearOperator(
        laplacian.shape, matvec=lambda v: top * v - laplacian @ v - 2 * top * (flat @ (flat.T @ v)), dtype=np.float64
    )
    try:
        values, vectors = eigsh(flipped, k=more, which="LA", v0=_start(clients), ncv=min(clients, 4 * more + 40))
    except ArpackNoConvergence:
        raise FedkinError(
            f"the {count} smoothest modes of this graph of {clients:,} clients did not converge; use another denoiser "
            "(soft, heat) or a smaller rank"
        ) from None
    order = np.argsort(-values)
    return np.concatenate([np.zeros(flat.shape[1]), (top - values[order]).clip(0)]), np.hstack(
        [flat, vectors[:, order]]
    )


def _all(laplacian: sp.csr_array) -> np.ndarray:
    """All eigenvalues, ascending. LAPACK's drivers for a few of them break off on the complete graph of 50 clients."""
    return np.asarray(scipy.linalg.eigvalsh(laplacian.toarray(), driver="evd"))


def largest(laplacian: sp.csr_array) -> float:
    """λ_max: exact for small graphs, by Lanczos for large ones (the diagonal bound should Lanczos fail).

    The top of the spectrum of a very large graph is crowded; there Lanczos stops within 1 % of it, from below.
    """
    clients = laplacian.shape[0]
    if clients == 0 or laplacian.diagonal().max() == 0:
        return 0.0
    if clients <= 200:
        return float(_all(laplacian)[-1])
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    try:
        tolerance = 1e-6 if clients <= VERY_LARGE else 1e-2
        return float(eigsh(laplacian, k=1, which="LA", v0=_start(clients), tol=tolerance, return_eigenvectors=False)[0])
    except ArpackNoConvergence:
        return 2 * float(laplacian.diagonal().max())


def second_smallest(laplacian: sp.csr_array) -> float:
    """λ_1 of a connected graph; not a number where Lanczos does not converge (very large, badly connected graphs)."""
    clients = laplacian.shape[0]
    if clients <= 1_000:
        return float(_all(laplacian)[1])
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    top = 2 * float(laplacian.diagonal().max())
    # On cI − L the constant vector has eigenvalue c, known beforehand; the next one is c − λ_1.
    flipped = sp.csr_array(top * sp.eye_array(clients, format="csr") - laplacian)
    try:
        values = eigsh(
            flipped, k=2, which="LA", v0=_start(clients), ncv=40, tol=1e-8, maxiter=300, return_eigenvectors=False
        )
    except ArpackNoConvergence:
        return float("nan")
    return float(top - values.min())


def bound(adjacency: sp.csr_array) -> float:
    """max over edges of d_i + d_j ≥ λ_max (Anderson and Morley 1985, weighted form)."""
    degrees = np.asarray(adjacency.sum(axis=1)).ravel()
    edges = adjacency.tocoo()
    return float((degrees[edges.row] + degrees[edges.col]).max()) if edges.nnz else 0.0


def _start(clients: int) -> np.ndarray:
    """A fixed start vector for Lanczos with parts along every mode, so that results do not depend on global state."""
    return np.cos(np.arange(clients, dtype=float) ** 2 + 0.5)
