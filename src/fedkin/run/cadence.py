"""How often a run tests its clients and saves itself, unless told: as often as costs little beside the training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

TESTING = 0.05
"""Share of the training that testing all clients may take when only some of them train."""
SAVING = 0.01
"""Share of the time that checkpoints may take."""
SHORTEST = 5.0
"""Seconds between checkpoints, at least."""


def rounds_between_tests(rounds: int, taking_part: float, tested: int, trained: int) -> int:
    """Ten tests in a run; fewer where a share `taking_part` trains and a test of all would cost more than `TESTING`.

    `tested` and `trained` are the samples of all clients. To test with a sample costs a third of a step with it: only the
    way forward. The rule counts samples and takes no times, so that a run repeated tests in the same rounds.

    >>> rounds_between_tests(50, taking_part=1.0, tested=200, trained=600)
    5
    >>> rounds_between_tests(50, taking_part=0.1, tested=200, trained=600)
    23
    """
    tenth = max(1, -(-rounds // 10))
    if taking_part == 1 or not trained:
        return tenth
    share = tested / (3 * taking_part * trained)
    return max(tenth, -int(-share // TESTING))


@dataclass
class Saves:
    """When the next checkpoint is due, from what the last one took."""

    last: float = field(default_factory=lambda: time.monotonic())
    took: float = 0.0

    def due(self) -> bool:
        return time.monotonic() - self.last >= max(SHORTEST, self.took / SAVING)

    @contextmanager
    def timed(self) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.last = time.monotonic()
        self.took = self.last - started
