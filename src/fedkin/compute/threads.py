"""How many threads torch works with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(when: bool = True) -> Iterator[None]:
    """Hold torch at one thread: for many small operations, on which a second thread is woken for longer than it helps."""
    threads = torch.get_num_threads()
    if when:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
