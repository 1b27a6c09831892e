"""How much auto tries: folds, fine-tuning, rates; and the climb that finds a rate with few trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Effort:
    """How much is tried. `folds` None: 3 where the median client has at least 100 samples, else 4."""

    folds: int | None
    used: int | None
    """How many of the folds are held out; None: all."""
    fine_tuning: tuple[int, ...]
    bayes: bool
    rates: tuple[float, ...]
    """Learning rates, ascending, that a short test on a fold chooses from."""
    together: Mapping[str, tuple[float, ...]]
    """FedAvg and Kin try these multiples of it, ascending, on the first fold; each trains as its models do best there."""
    adam: bool
    """Whether those that try multiples try Adam, too."""

    def cut(self, sizes: np.ndarray) -> tuple[int, int]:
        """Into how many folds clients with so many samples cut them, and how many of these are held out."""
        count = self.folds or (3 if float(np.median(sizes)) >= 100 else 4)
        return count, self.used or count


def _both(*multiples: float) -> dict[str, tuple[float, ...]]:
    return {"fedavg": multiples, "kin": multiples}


RATES, STEPS = (0.03, 0.1, 0.3), (10, 50, 200)
EFFORTS = {
    "quick": Effort(4, 1, STEPS[:2], False, RATES, {"fedavg": (1.0, 3.0)}, adam=False),
    "standard": Effort(None, None, STEPS, True, RATES, _both(1 / 3, 1.0, 3.0), adam=True),
    "thorough": Effort(5, None, STEPS, True, (0.01, *RATES, 1.0), _both(1 / 9, 1 / 3, 1.0, 3.0, 9.0), adam=True),
}


def climbed(steps: Sequence[float], loss: Callable[[float], float]) -> float:
    """The step with the smallest loss: from the middle of the list upwards while the loss falls, or else downwards.

    >>> climbed((1, 3, 10, 30, 100), lambda rate: (rate - 25) ** 2)
    30
    """
    place = len(steps) // 2
    losses = {place: loss(steps[place])}
    for way in (1, -1):
        at = place + way
        while 0 <= at < len(steps):
            losses[at] = loss(steps[at])
            if losses[at] >= losses[at - way]:
                break
            at += way
        if min(losses, key=lambda one: losses[one]) != place:
            break
    return steps[min(losses, key=lambda one: (losses[one], one))]
