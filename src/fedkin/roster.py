"""Roster: a federation as the server sees it — who takes part, how many samples, which task — and never a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkin.graphs import ClientGraph
from fedkin.task import Task


@dataclass(frozen=True)
class Roster:
    """What `Run` needs of a federation, whether its samples are in this process or with the sites."""

    names: tuple[str, ...]
    task: Task
    train: np.ndarray
    """Training samples per client, (K,); likewise the other two splits."""
    validation: np.ndarray
    test: np.ndarray
    fingerprint: str
    """A hash of the clients' data, made where they are: a resumed run must see the same."""
    graph: ClientGraph | None = None
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Mapping[str, Any], ...] = ()
    label_counts: np.ndarray | None = None
    """Samples per client and class, (K, C), where they are known; sites tell them only to what asks for them."""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return (
            f"Roster({len(self)} clients, {self.task.kind}, inputs {self.task.input_shape}, "
            f"{int(self.train.sum())} train samples)"
        )
