"""Rows in a file: the server's K×B matrix where it may be larger than memory, because few of its rows are used at a time."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from fedkin.compute.memory import uninitialised
from fedkin.errors import FedkinError
from fedkin.files import Lock
from fedkin.files.atomic import REASONS, refuse_full

CHUNK = 2**26
"""Bytes that are read or written at a time where all rows are."""


class RowsFile:
    """A (K, B) tensor whose memory is a file: `rows` is read and written as any tensor, and only pages in use are loaded.

    The file holds the rows one after the other and nothing else; `np.memmap(path, dtype, shape=(K, B))` reads it too. An
    older file of the same size is written over; any other file is left alone.
    """

    def __init__(self, path: str | Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self.path, size = Path(path), shape[0] * shape[1] * dtype.itemsize
        if not size:
            raise FedkinError(f"rows file {self.path}: these models have no rows to keep in a file")
        if self.path.exists() and (not self.path.is_file() or self.path.stat().st_size != size):
            raise FedkinError(
                f"rows file {self.path} exists and is none of {shape[0]:,} rows of {shape[1]:,}; name another file"
            )
        self._lock = Lock(self.path.with_name(f".{self.path.name}.lock"), f"rows file {self.path}")
        try:
            with open(self.path, "a+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
                self._memory = mmap.mmap(file.fileno(), size)
        except OSError as problem:
            self._lock.release()
            reason = REASONS.get(problem.errno or 0, problem)
            raise FedkinError(f"rows file {self.path} ({size / 2**30:.1f} GiB) cannot be made: {reason}") from problem
        self._memory.madvise(mmap.MADV_RANDOM)  # a client's row says nothing about which is needed next
        self.rows: Tensor = torch.frombuffer(self._memory, dtype=dtype).view(shape)

    def fill(self, rows: Tensor) -> None:
        """Write all rows, past the mapping, so that they need no memory."""
        try:
            with open(self.path, "r+b") as file:
                for part in slices(self.rows):
                    file.write(rows[part].to(self.rows.dtype).contiguous().numpy().data)
        except OSError as problem:
            refuse_full(problem, self.path, "is incomplete")
            raise

    def close(self) -> None:
        """Let another run have the file; the rows stay readable here until it does."""
        self._lock.release()

    def release(self) -> None:
        """Let go of the pages in memory; what was written to them is in the file (or on its way there)."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    def __repr__(self) -> str:
        return f"RowsFile({self.path}, {self.rows.shape[0]:,} rows of {self.rows.shape[1]:,}, {self.rows.dtype})"


class RowMemory:
    """Where a run keeps the rows (K, B) that its method writes over, and later the clients' models: memory, or files.

    `path` is the file of the rows; the models go to a file beside it, "FILE.models". Without a path: memory.
    """

    def __init__(self, path: str | Path | None, shape: tuple[int, int], dtype: torch.dtype) -> None:
        self.shape, self.dtype, self.path = shape, dtype, path
        self.files = [] if path is None else [RowsFile(path, shape, dtype)]

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def rows(self, values: Tensor) -> Tensor:
        """Rows with these values, to be written over."""
        if not self.files:
            return uninitialised(self.shape, self.dtype).copy_(values)
        self.files[0].fill(values)
        return self.files[0].rows

    def models(self) -> Tensor:
        """Room for the models of all clients."""
        if not self.files:
            return uninitialised(self.shape, self.dtype)
        self.files[1:] = [RowsFile(f"{self.path}.models", self.shape, self.dtype)]
        return self.files[1].rows

    def release(self) -> None:
        """Let go of the pages of the files, so that memory holds no more rows than are in use."""
        for file in self.files:
            file.release()

    def close(self) -> None:
        """Let another run have the files."""
        for file in self.files:
            file.close()

    def discard(self) -> None:
        """Remove the files: nobody needs these rows again."""
        self.close()
        for file in self.files:
            file.path.unlink(missing_ok=True)


def slices(rows: Tensor) -> list[slice]:
    """Consecutive rows of at most 64 MiB together, or one."""
    step = max(1, CHUNK // max(1, rows.shape[1] * rows.element_size()))
    return [slice(at, min(at + step, len(rows))) for at in range(0, len(rows), step)]
