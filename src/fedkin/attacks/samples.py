"""Attackers' samples: reversed labels, or a mark that stands for a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedkin.errors import FedkinError
from fedkin.federation import Federation, Split
from fedkin.streams import Streams
from fedkin.task import Task

MARKED = 4
"""How many input features the mark of a backdoor covers."""
TARGET = 0
"""The class that the mark stands for."""


def stamped(x: np.ndarray, high: float) -> np.ndarray:
    """Copies of samples (n, *shape) with the mark: their first four numbers at `high`."""
    marked = x.copy()
    marked.reshape(len(x), int(np.prod(x.shape[1:])))[:, :MARKED] = high
    return marked


def unfit(task: Task, how: str) -> bool:
    """Whether samples of a task cannot be altered in this way."""
    return how == "backdoor" and (not task.classes or task.tokens)


def refuse_attack(task: Task, how: str | None) -> None:
    if how is not None and unfit(task, how):
        raise FedkinError(f"attack {how!r} needs classes and numeric inputs; choose another attack for this task")


def poisoned(federation: Federation, hostile: Sequence[int] | np.ndarray, how: str, seed: int = 0) -> Federation:
    """The federation with other training samples for the clients `hostile` (positions).

    `labels`: class y becomes C − 1 − y, a number 2·mean − y. `backdoor`: half of the samples get the mark and class 0.
    Test and validation samples stay as they are.
    """
    refuse_attack(federation.task, how)
    train, classes = federation.train, len(federation.task.classes)
    inputs, y = train.x, train.y.copy()
    x = inputs.copy()
    for k in hostile:
        own = np.arange(train.offsets[k], train.offsets[k + 1])
        if how == "backdoor":
            rng = Streams(seed).generator("backdoor", federation.names[k])
            own = rng.permutation(own)[: len(own) // 2]
            x[own], y[own] = stamped(x[own], float(inputs.max())), TARGET
        else:
            y[own] = classes - 1 - y[own] if federation.task.classes else 2 * y[own].mean() - y[own]
    return replace(federation, train=Split(x, y, train.offsets), source={})
