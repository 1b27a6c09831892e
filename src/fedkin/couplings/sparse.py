"""Products of a client-by-client matrix with stacked rows: one gemm where it is small or dense, else CSR."""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse as sp
import torch

from fedkin.compute.memory import uninitialised


class ClientMatrix:
    """A fixed matrix over clients, multiplied with many blocks of rows: shapes (n, K) × (K, B) → (n, B).

    Sparse products run as `torch.addmm(out=…)` on CSR with 32-bit indices; a small or rather dense matrix as one gemm.
    Copies of the matrix per dtype are kept.
    """

    def __init__(self, matrix: sp.csr_array, dense: bool | None = None) -> None:
        self.csr = sp.csr_array(matrix)
        self.csr.sort_indices()
        n, k = self.csr.shape
        # A gemm entry costs about a tenth of a sparse one; 4,000 clients are 128 MB in float64.
        small = max(n, k) <= 64 or (max(n, k) <= 4_000 and self.csr.nnz > 0.1 * n * k)
        self.dense = small if dense is None else dense
        self._typed: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def typed(self, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
        """The matrix as a torch tensor of this dtype on a device."""
        key = dtype, device or torch.device("cpu")
        if key not in self._typed:
            made = torch.from_numpy(self.csr.toarray()).to(dtype) if self.dense else to_torch(self.csr, dtype)
            self._typed[key] = made.to(key[1])
        return self._typed[key]

    def narrowed(self) -> tuple[np.ndarray, ClientMatrix]:
        """The columns that are not empty, ascending, and the matrix of these alone: the same product of fewer rows."""
        columns, places = np.unique(self.csr.indices, return_inverse=True)
        parts = (self.csr.data, places.astype(self.csr.indices.dtype), self.csr.indptr)
        return columns, ClientMatrix(sp.csr_array(parts, shape=(self.csr.shape[0], len(columns))), dense=self.dense)

    def times(self, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The product, into `out` if given (which must not overlap `rows`)."""
        if out is None:
            shape = self.csr.shape[0], rows.shape[1]
            out = uninitialised(shape, rows.dtype, rows.device)
        matrix = self.typed(rows.dtype, rows.device)
        if self.dense:
            return torch.mm(matrix, rows, out=out)
        return torch.addmm(out, matrix, rows, beta=0, out=out)


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
