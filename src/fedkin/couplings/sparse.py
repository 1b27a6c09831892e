"""Products of a client-by-client matrix with stacked rows: one gemm where it is small or dense, else CSR."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.compute.memory import uninitialised

CACHED = 2**18
"""So many numbers of rows are multiplied at a time by a sparse matrix: they stay in the processor's cache."""
NARROWEST = 32
"""Fewer columns at a time gain nothing."""
DENSEST = 4_000
"""With more clients a full matrix is 128 MB and more."""


class ClientMatrix:
    """A fixed matrix over clients, multiplied with many blocks of rows: shapes (n, K) × (K, B) → (n, B).

    A small or rather dense matrix is one gemm. A sparse one is a product on CSR with 32-bit indices, a few columns of all rows
    at a time: every neighbour reads a row again, which is then in the cache. (1,000 clients, 44,805 columns: with 10
    neighbours each 0.5 of the time of all columns at once, with 40 neighbours 0.2.) Where most entries have one value c, as in
    a complete graph of equal weights, c·11ᵀ is taken out and the rest is sparse. Copies of the matrix per dtype are kept.
    """

    def __init__(self, matrix: sp.csr_array, dense: bool | None = None) -> None:
        self.csr = sp.csr_array(matrix)
        self.csr.sort_indices()
        n, k = self.csr.shape
        self._rest: sp.csr_array
        self.common, self._rest = _without_common(self.csr) if dense is None else (0.0, self.csr)
        # A gemm entry costs about a third of a sparse one; 4,000 clients are 128 MB in float64.
        small = max(n, k) <= 64 or (max(n, k) <= DENSEST and self._rest.nnz > 0.3 * n * k)
        self.dense = small if dense is None else dense
        self._typed: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def typed(self, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
        """The matrix as a torch tensor of this dtype on a device."""
        key = dtype, device or torch.device("cpu")
        if key not in self._typed:
            made = torch.from_numpy(self.csr.toarray()).to(dtype) if self.dense else to_torch(self._rest, dtype)
            self._typed[key] = made.to(key[1])
        return self._typed[key]

    def narrowed(self) -> tuple[np.ndarray, ClientMatrix]:
        """The columns that are not empty, ascending, and the matrix of these alone: the same product of fewer rows."""
        if self.common:
            return np.arange(self.csr.shape[1]), self
        columns, places = np.unique(self.csr.indices, return_inverse=True)
        parts = (self.csr.data, places.astype(self.csr.indices.dtype), self.csr.indptr)
        return columns, ClientMatrix(sp.csr_array(parts, shape=(self.csr.shape[0], len(columns))), dense=self.dense)

    def times(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The product, into `out` if given (which must not overlap `rows`)."""
        (n, k), columns = self.csr.shape, rows.shape[1]
        if out is None:
            out = uninitialised((n, columns), rows.dtype, rows.device)
        matrix = self.typed(rows.dtype, rows.device)
        if self.dense:
            return torch.mm(matrix, rows, out=out)
        width = max(NARROWEST, CACHED // max(1, n, k))
        if columns <= width or width * max(n, k) > 4 * CACHED or rows.device.type != "cpu":
            return self._sparse_times(matrix, rows, out)
        block = rows.new_empty((k, width))
        for at in range(0, columns, width):
            some = slice(at, min(at + width, columns))
            self._sparse_times(matrix, block[:, : some.stop - at].copy_(rows[:, some]), out[:, some])
        return out

    def _sparse_times(self, matrix: torch.Tensor, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """c·11ᵀ rows + (the sparse rest) rows."""
        if not self.common:
            return torch.addmm(out, matrix, rows, beta=0, out=out)
        out.copy_(self.common * rows.sum(dim=0))
        return torch.addmm(out, matrix, rows, out=out)


def _without_common(matrix: sp.csr_array) -> tuple[float, sp.csr_array]:
    """The value c that most entries (n, k) have, and the rest M − c·11ᵀ; 0 and M where no other value is so frequent."""
    n, k = matrix.shape
    if max(n, k) > DENSEST or 2 * matrix.nnz <= n * k:
        return 0.0, matrix
    common = float(np.median(matrix.data))
    rest = matrix.toarray() - common
    few = 4 * np.count_nonzero(rest) < n * k
    return (common, sp.csr_array(rest)) if few else (0.0, matrix)


def to_torch(matrix: sp.csr_array, dtype: torch.dtype) -> torch.Tensor:
    """A scipy CSR matrix as a torch CSR tensor; indices stay 32-bit where they fit (MKL is faster with them)."""
    index = np.int32 if matrix.nnz < np.iinfo(np.int32).max else np.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(index)),
            torch.from_numpy(matrix.indices.astype(index)),
            torch.from_numpy(matrix.data.copy()).to(dtype),
            size=matrix.shape,
            check_invariants=False,
        )
