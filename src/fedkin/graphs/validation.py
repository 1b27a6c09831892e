"""What an adjacency must satisfy, and who is to blame if it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from fedkin.errors import FedkinError


def as_csr(adjacency: Any) -> sp.csr_array:
    """Any matrix as float64 CSR, without duplicates."""
    if not sp.issparse(adjacency):
        adjacency = np.asarray(adjacency)
        if adjacency.ndim != 2:
            raise FedkinError(f"adjacency must be a (K, K) matrix, not of shape {adjacency.shape}")
    try:
        matrix = sp.csr_array(adjacency, dtype=np.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise FedkinError(f"adjacency must hold numbers: {error}") from None
    matrix.sum_duplicates()
    return matrix


def validated(matrix: sp.csr_array, names: tuple[str, ...]) -> sp.csr_array:
    """The matrix, sorted, exactly symmetric and with 32-bit indices, or an error that names the clients at fault."""
    rows, columns = matrix.shape
    if rows != columns:
        raise FedkinError(f"adjacency must be square, one row and one column per client, not {rows}×{columns}")
    if len(names) != rows:
        raise FedkinError(f"{len(names)} names for {rows} clients; give one name per row of the adjacency")
    if len(set(names)) != len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise FedkinError(f"client {twice!r} is named twice; names must be unique")
    _refuse(matrix, names, ~np.isfinite(matrix.data), "is not finite; use 0 for unrelated clients")
    _refuse(matrix, names, matrix.data < 0, "is negative; weights say how alike clients are and start at 0")
    loops = np.flatnonzero(matrix.diagonal())
    if len(loops):
        raise FedkinError(
            f"client {names[loops[0]]!r} is joined to itself (weight {matrix.diagonal()[loops[0]]:g}); "
            "set the diagonal to 0"
        )
    gap = sp.coo_array(abs(matrix - matrix.T))
    # A float32 kernel matrix differs from its transpose by rounding; that much is averaged away, more is a mistake.
    if gap.nnz and gap.data.max() > 1e-6 * matrix.data.max():
        at = int(gap.data.argmax())
        i, j = sorted((int(gap.row[at]), int(gap.col[at])))
        raise FedkinError(
            f"adjacency is not symmetric: {names[i]!r}→{names[j]!r} is {matrix[i, j]:g} but {names[j]!r}→{names[i]!r} "
            f"is {matrix[j, i]:g} (they differ by {gap.data[at]:g}); use ClientGraph.symmetrised(A) or (A + A.T)/2"
        )
    if gap.nnz:
        matrix = sp.csr_array((matrix + matrix.T) / 2)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    if matrix.nnz < np.iinfo(np.int32).max:
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return matrix


def _refuse(matrix: sp.csr_array, names: tuple[str, ...], bad: np.ndarray, why: str) -> None:
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        i = int(np.searchsorted(matrix.indptr, at, side="right")) - 1
        j = int(matrix.indices[at])
        raise FedkinError(f"weight {matrix.data[at]:g} between clients {names[i]!r} and {names[j]!r} {why}")
