"""Memory for large tensors: on huge pages, and used again."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from functools import cache

import numpy as np
import torch
from torch import Tensor

_HUGE = 16 * 2**20
"""Tensors above this many bytes are allocated on huge pages."""
_KEPT = 128 * 2**20
"""So many bytes that no tensor uses any more are kept for the next ones of the same size."""
_OWN_MAPPING = 2**25 - 2**16
"""glibc may come to allocate up to so many bytes from its heap, of which it keeps twice as many that are free."""
_spare: dict[int, deque[mmap.mmap]] = {}
"""Memory that no tensor uses any more, by size."""


def uninitialised(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """An uninitialised tensor, in main memory (no device, or the CPU) on huge pages when it is large.

    Fresh memory costs one page fault per page touched; with 4 KiB pages that is several times dearer than writing the
    numbers (a 400 MB result: 0.3 s against 0.03 s on the machine of docs/benchmarks.md). 2 MiB pages avoid it, but each has
    to be cleared, and found by a virtual machine that never used it (36 MB: 2 ms, up to 70): rows of a round take the
    memory of earlier ones.
    """
    main = device is None or device.type == "cpu"
    size = math.prod(shape) * dtype.itemsize
    if size < _HUGE or not main or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype, device=device)
    try:
        memory = _spare[size].pop()
    except (KeyError, IndexError):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    holder = np.frombuffer(memory, dtype=np.uint8)
    weakref.finalize(holder, _keep, memory).atexit = False
    return torch.from_numpy(holder).view(dtype).view(shape)


def _keep(memory: mmap.mmap) -> None:
    """Keep memory that its tensor has left, as long as that is not too much in all."""
    kept = sum(size * len(spare) for size, spare in list(_spare.items()))
    if kept + len(memory) <= _KEPT:
        _spare.setdefault(len(memory), deque()).append(memory)
    elif kept:
        _spare.clear()


def copied(rows: Tensor) -> Tensor:
    """A copy of rows (k, B) that lie one after the other in memory."""
    return uninitialised(tuple(rows.shape), rows.dtype, rows.device).copy_(rows)


@cache
def keep_freed() -> None:
    """Have glibc keep memory that was freed for the next tensors, instead of giving it back and clearing new pages.

    A tensor of more than 128 KiB has a mapping of its own, until a larger one was freed (mallopt(3), M_MMAP_THRESHOLD): then all up
    to that size come from the heap. So one is freed here. The activations of a convolution with 48 channels are 3 MB, and their
    pages took a fifth of its training. On other systems nothing happens.
    """
    torch.empty(_OWN_MAPPING, dtype=torch.uint8, device="cpu")
