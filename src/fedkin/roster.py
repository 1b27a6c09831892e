"""Roster: a federation seen from a server that holds no data — names, sizes, the task, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedkin.federation import Task
from fedkin.graphs import ClientGraph


@dataclass(frozen=True)
class Counted:
    """One split as the server knows it: how many samples each client has, (K,)."""

    sizes: np.ndarray


@dataclass(frozen=True)
class Roster:
    """What `Run` needs of a federation whose samples are elsewhere."""

    names: tuple[str, ...]
    task: Task
    train: Counted
    validation: Counted
    test: Counted
    fingerprints: tuple[str, ...] = ()
    """One per client, made where the data are: a resumed run must see the same data."""
    graph: ClientGraph | None = None
    truth: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[Mapping[str, Any], ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        samples = int(self.train.sizes.sum())
        return f"Roster({len(self)} clients, {self.task.kind}, inputs {self.task.input_shape}, {samples} train samples)"

    def label_counts(self) -> None:
        """Clients disclose their label counts only to a method or graph that asks for them."""

    def fingerprint(self) -> str:
        told = json.dumps([self.names, self.fingerprints]).encode()
        return hashlib.blake2b(told, digest_size=12).hexdigest()
