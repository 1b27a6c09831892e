"""The ledger: what every client has spent, on disk before it is used.

A line of ledger.jsonl is one charge of one or more clients: steps with a sampling rate and a noise multiplier. Lines are only ever
added, each synced before the training it pays for begins. A process that is killed has therefore spent at most what it did
not use. A last line that is not whole was never paid for: nothing was trained with it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkin.errors import FedkinError
from fedkin.files import append
from fedkin.privacy.accounting import ORDERS, cost_of_steps, epsilon_of
from fedkin.privacy.settings import Level

LEDGER = "ledger.jsonl"
"""The file in a run's folder, or beside a site's site.toml, that says what clients have spent."""
TOLERANCE = 1e-6
"""A budget may be passed by this share: rounding."""
NOTHING = np.zeros(len(ORDERS))


class BudgetSpent(Exception):
    """A client may not train any more."""


class Charge(NamedTuple):
    """What a client is about to spend: `steps` at a sampling rate with a noise multiplier."""

    client: str
    rate: float
    noise: float
    steps: int

    @property
    def cost(self) -> np.ndarray:
        return cost_of_steps(self.rate, self.noise, self.steps)


class Ledger:
    """The account of some clients, by name; without a path it lives as long as its process."""

    def __init__(self, path: Path | None = None) -> None:
        self.path, self._read = path, 0
        self._cost: dict[tuple[str, str], np.ndarray] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take in what others have written since."""
        if self.path is None or not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                for level, charge in charges_in(line, self.path):
                    self._add(level, charge)

    def _add(self, level: str, charge: Charge) -> None:
        self._cost[level, charge.client] = self.cost(charge.client, level) + charge.cost

    def cost(self, client: str, level: Level | str) -> np.ndarray:
        """What a client has spent so far, as Rényi divergences at all orders."""
        return self._cost.get((level, client), NOTHING)

    def epsilon(self, client: str, level: Level, delta: float) -> float:
        """What a client has spent so far, as ε at this δ."""
        return epsilon_of(self.cost(client, level), delta)

    def spent(self, delta: float) -> dict[str, dict[str, float]]:
        """Level → client → ε at this δ."""
        found: dict[str, dict[str, float]] = {}
        for (level, client), cost in self._cost.items():
            found.setdefault(level, {})[client] = epsilon_of(cost, delta)
        return found

    def charge(self, charges: Sequence[Charge], level: Level, epsilon: float, delta: float) -> None:
        """Write down what clients are about to spend; nothing is, if one of them would pass its budget (ε, δ)."""
        with self._alone():
            self.refresh()
            for charge in charges:
                before = self.cost(charge.client, level)
                if epsilon_of(before + charge.cost, delta) > epsilon * (1 + TOLERANCE):
                    raise BudgetSpent(
                        f"client {charge.client!r} has spent ε = {epsilon_of(before, delta):.4g} of {epsilon:g} (δ = {delta:g}); "
                        "another training would pass its privacy budget"
                    )
            if self.path is not None:
                line = line_of(level, charges)
                append(self.path, [b"\n" if self._torn() else b"", line])
                self.refresh()
            else:
                for charge in charges:
                    self._add(level, charge)

    def _torn(self) -> bool:
        """Whether a killed writer left a piece of a line at the end."""
        return self.path is not None and self.path.exists() and self.path.stat().st_size > self._read

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer at a time, of all processes."""
        if self.path is None:
            yield
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def line_of(level: Level, charges: Sequence[Charge]) -> bytes:
    """A line of the file: columns, because thousands of clients may pay at once."""
    names, rates, noises, steps = zip(*charges)
    columns = {"level": level, "clients": names, "rate": rates, "noise": noises, "steps": steps}
    return json.dumps(columns, separators=(",", ":")).encode() + b"\n"


def charges_in(line: bytes, path: Path) -> Iterator[tuple[str, Charge]]:
    """The charges of one line. A piece that a killed writer left is none; anything else that is strange is refused."""
    if not line.strip():
        return
    try:
        told: Mapping[str, list[Any]] = json.loads(line)
    except ValueError as problem:
        if not line.rstrip().endswith(b"}"):  # a piece of a line has no end
            return
        raise FedkinError(f"{path} is damaged: {problem}; what its clients have spent cannot be told") from problem
    try:
        rows = zip(told["clients"], told["rate"], told["noise"], told["steps"], strict=True)
        found = [Charge(str(who), float(q), float(s), int(n)) for who, q, s, n in rows]
        level = str(told["level"])
        if any(not (0 < c.rate <= 1 and 0 < c.noise < np.inf and c.steps >= 0) for c in found):
            raise ValueError("a rate, noise or number of steps that cannot be")
    except (KeyError, TypeError, ValueError) as problem:
        raise FedkinError(f"{path} is no ledger of private training ({problem}); it must not be edited") from problem
    yield from ((level, charge) for charge in found)
