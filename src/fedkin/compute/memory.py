"""Fresh memory for large tensors."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

_HUGE = 16 * 2**20
"""Tensors above this many bytes are allocated on huge pages."""


def uninitialised(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """An uninitialised tensor, in main memory (no device, or the CPU) on huge pages when it is large.

    Fresh memory costs one page fault per page touched; with 4 KiB pages that is several times dearer than writing the
    numbers (a 400 MB result: 0.3 s against 0.03 s on the machine of docs/benchmarks.md). 2 MiB pages avoid it.
    """
    main = device is None or device.type == "cpu"
    size = math.prod(shape) * dtype.itemsize
    if size < _HUGE or not main or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def copied(rows: Tensor) -> Tensor:
    """A copy of rows (k, B) that lie one after the other in memory."""
    return uninitialised(tuple(rows.shape), rows.dtype, rows.device).copy_(rows)
