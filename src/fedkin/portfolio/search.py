"""The search: a learning rate, members in every fold, which of them are worth more training, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin import algorithms
from fedkin.algorithm import Setting
from fedkin.clients import Clients
from fedkin.errors import FedkinError
from fedkin.graphs.directed import directed
from fedkin.local.sgd import Sgd
from fedkin.models import ModelSpec
from fedkin.portfolio.evidence import ERRORS, NO_FIT, SAY
from fedkin.portfolio.kept import KeptMembers, MemberShapes
from fedkin.portfolio.members import TrainedMember, WatchMembers, fine_tuned, steps_alone, train_member
from fedkin.portfolio.together import Folds
from fedkin.portfolio.weights import (
    TEMPERATURES,
    Told,
    Weighed,
    least_squares_pool,
    mixed_pool,
    tempered,
    weigh,
)
from fedkin.streams import Streams, client_keys
from fedkin.task import Task

ASKED = 12
"""Clients that try learning rates: a rate is no client's own."""
WORTH = 0.01
"""A costly member is trained in all folds if it lowers the held-out loss of the first by this share."""
WORSENING = 0.02
"""Fine-tuning goes on unless the last stretch raised the held-out loss by this share."""
SLOWER = 1 / 3
"""Training that went astray is done again at this much of the rate, …"""
ATTEMPTS = 3
"""… so often at most."""
ASTRAY = 10.0
"""A model whose loss on a client's training samples is so many times the untrained model's is none for that client."""
FEW = 0.1
"""A method is trained again, slower, where it went astray for a larger share of the clients."""


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

    def cut(self, sizes: np.ndarray) -> tuple[int, int]:
        """Into how many folds clients with so many samples cut them, and how many of these are held out."""
        count = self.folds or (3 if float(np.median(sizes)) >= 100 else 4)
        return count, self.used or count


EFFORTS = {
    "quick": Effort(4, 1, (10, 50), False, (0.03, 0.1, 0.3)),
    "standard": Effort(None, None, (10, 50, 200), True, (0.03, 0.1, 0.3)),
    "thorough": Effort(5, None, (10, 50, 200), True, (0.01, 0.03, 0.1, 0.3, 1.0)),
}


@dataclass(frozen=True)
class Found:
    """What the search ends with."""

    members: dict[str, Tensor]
    """Models (F, K, B) by name, Local first."""
    alone: Tensor
    """Local, trained on all samples, (K, B)."""
    weighed: Weighed
    kin: sp.csr_array
    """Who helps whom, (K, K), the mean over the folds."""
    rate: float
    left_out: tuple[str, ...]
    """Members whose training was not begun or stopped, since held-out samples spoke against them."""


@dataclass
class MemberSearch:
    """Members and their weights, from K·(F + 1) further clients: F folds, and one in which nothing is held out."""

    clients: Clients
    names: tuple[str, ...]
    task: Task
    spec: ModelSpec
    streams: Streams
    effort: Effort
    used: int
    training: Mapping[str, Any]
    rounds: int
    kept: KeptMembers
    watch: WatchMembers
    said: dict[str, tuple[Tensor, range]] = field(default_factory=dict)
    """What was asked for: a member's models and the folds they are of."""
    losses: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Per member the best temperature's place in the grid and the mean held-out loss there."""
    fit: dict[str, np.ndarray] = field(default_factory=dict)
    """Per member its loss on training samples, (F, K)."""

    # --- parts --------------------------------------------------------------------------------------------------------

    def folds(self, numbers: Sequence[int], pace: np.ndarray | None = None) -> Folds:
        return Folds(self.clients, self.names, numbers, pace)

    @cached_property
    def untrained(self) -> np.ndarray:
        """The untrained model's loss on each client's training samples, (K,), at least the median of all clients'."""

        def ask() -> dict[str, Tensor]:
            size = len(self.names)
            rows = self.spec.initial_row(self.streams).expand(size, -1)
            ids = self.used * size + np.arange(size)
            replies = self.clients.ask("evaluate", ids, {"rows": rows}, {"parts": ["train"]}, bill=False)
            losses = torch.full((size,), torch.nan, dtype=torch.float64)
            losses[torch.from_numpy(replies.ids - self.used * size)] = replies["train_loss"].double()
            return {"losses": losses}

        losses = self.once("untrained", ask)["losses"].numpy()
        return np.fmax(losses, np.nanmedian(losses))

    def settings(self, folds: Folds) -> tuple[Setting, ...]:
        how = self.task, self.spec, self.streams
        return tuple(Setting(self.names, view.sizes, *how, rounds=self.rounds) for view in folds.views)

    def once(self, name: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        shapes = MemberShapes(len(self.names), self.used, self.spec.layout.width, self.spec.dtype)
        return self.kept.once(name, self.clients.traffic, make, shapes)

    def say(self, member: str, rows: Tensor, folds: range) -> float:
        """Have clients look at what a member says of held-out samples; the mean loss at its best temperature."""
        self.said[member] = rows, folds
        self.clients.remember(self._say_again)
        size, grid = len(self.names), torch.from_numpy(TEMPERATURES)
        ids = np.arange(folds.start * size, folds.stop * size)
        limit = torch.from_numpy(np.tile(ASTRAY * self.untrained, len(folds)))
        per_client = {"models": rows[: len(folds)].flatten(0, 1), "limit": limit}
        replies = self.clients.ask(SAY, ids, per_client, {"member": member, "grid": grid})
        self.fit[member] = np.full((len(folds), size), NO_FIT)
        self.fit[member].ravel()[replies.ids - ids[0]] = replies["fit"].numpy()
        losses, counts = np.zeros((size, len(grid))), np.zeros(size)
        held = self._held(replies.ids) * replies["sound"].numpy()
        np.add.at(losses, replies.ids % size, replies["tempered"].numpy())
        np.add.at(counts, replies.ids % size, held)
        best = tempered(losses, counts)
        self.losses[member] = best
        return best[1]

    def _held(self, ids: np.ndarray) -> np.ndarray:
        """Samples that further clients hold out: what they lack of all."""
        size = len(self.names)
        return self.clients.sizes[self.used * size + ids % size] - self.clients.sizes[ids]

    def _say_again(self) -> None:
        for member, (rows, folds) in list(self.said.items()):
            self.say(member, rows, folds)

    def told(self, members: Sequence[str], folds: Sequence[int]) -> Told:
        """Sums about these members on the samples held out in these folds."""
        return Told(self.clients, len(self.names), folds, members, 1 if len(folds) > 1 else 2, self.warmth(members))

    def warmth(self, members: Sequence[str]) -> np.ndarray | None:
        if not self.task.mixes_chances:
            return None
        return np.array([TEMPERATURES[self.losses[member][0]] for member in members])

    def fits(self, members: Sequence[str]) -> np.ndarray:
        """The members' losses on training samples, the worst of the folds, (K, M)."""
        return np.stack([self.fit[member][: self.used].max(axis=0) for member in members], axis=1)

    def pooled_loss(self, members: Sequence[str], folds: Sequence[int]) -> float:
        """The held-out loss of the best pooled combination."""
        told = self.told(members, folds)
        pool = mixed_pool(told) if self.task.mixes_chances else least_squares_pool(told, told.ask(ERRORS)["gram"])
        return float(pool[1][-1])

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> Found:
        rate = float(self.training.get("lr") or self.once("rate", self._rate)["rate"])
        self.sgd = Sgd(**{**self.training, "lr": rate})
        local = self.alone(self.sgd)
        self.watch("local", self.rounds, self.rounds)
        members = {"local": local[: self.used]}
        common = self._steady("fedavg", lambda folds: {"rows": self._trained("fedavg", folds).rows})
        kin = self._steady("kin", lambda folds: self._kin(folds, local))
        members |= {"fedavg": common["rows"], "kin": kin["rows"]}
        left_out: list[str] = []
        for name in ("fedavg", "kin"):
            members |= self._fine_tuned(name, members[name], left_out)
        if self.effort.bayes:
            members |= self._bayes(list(members), left_out)
        told = self.told(list(members), range(self.used))
        warmth = self.warmth(list(members))
        temperatures = np.ones(len(members)) if warmth is None else warmth
        weighed = weigh(told, temperatures, self.task.mixes_chances, self.fits(list(members)))
        return Found(members, local[self.used], weighed, mean_kin(kin), rate, tuple(left_out))

    # --- training that may go astray ----------------------------------------------------------------------------------

    def alone(self, sgd: Sgd) -> Tensor:
        """Local in every fold and on everything, (F + 1, K, B), its opinion said. `pace` and `cohort` are what it teaches.

        A client whose loss on its own training samples ends above the untrained model's in any fold trains again, slower, and
        keeps that pace. Who goes astray at any pace is no part of the cohort: it does not train with the others.
        """
        self.pace = np.ones(len(self.names))
        numbers = range(self.used + 1)

        def train(ids: np.ndarray | None = None) -> dict[str, Tensor]:
            how = self.spec, self.streams, sgd, self.rounds
            return {"rows": steps_alone(self.folds(numbers, self.pace), *how, ids)}

        rows = self.once("local", train)["rows"]
        self.say("local", rows, numbers)
        rows = self._again("local", rows, numbers, self.untrained, self.pace, train)
        self.cohort = np.flatnonzero((self.fit["local"] <= ASTRAY * self.untrained).all(axis=0))
        return rows

    def _again(
        self,
        name: str,
        rows: Tensor,
        numbers: range,
        before: np.ndarray,
        pace: np.ndarray,
        train: Callable[[np.ndarray], Mapping[str, Tensor]],
    ) -> Tensor:
        """The rows (F, K, B) after `train` has been tried again, at a slower `pace`, where training raised the loss."""
        for attempt in range(1, ATTEMPTS + 1):
            ids = np.flatnonzero((self.fit[name] > before).any(axis=0))
            if not len(ids):
                break
            pace[ids] *= SLOWER
            made = self.once(f"{name}, {attempt} slower", lambda: train(ids))["rows"]  # noqa: B023
            rows = rows.clone()
            rows[:, ids] = made[:, ids]
            self.say(name, rows, numbers)
        return rows

    def _steady(self, name: str, train: Callable[[Folds], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """A method trained in every fold, its opinion said; again and slower where it went astray for many."""
        for attempt in range(ATTEMPTS + 1):
            folds = self.folds(range(self.used), self.pace * SLOWER**attempt)
            made = self.once(name if not attempt else f"{name}, {attempt} slower", lambda: train(folds))  # noqa: B023
            self.say(name, made["rows"], range(self.used))
            lost = np.any(self.fit[name] > ASTRAY * self.untrained, axis=0)[self.cohort]
            if not len(lost) or lost.mean() <= FEW:
                break
        return made

    def stretch(self, name: str, start: Tensor, sgd: Mapping[str, Any], steps: int, number: int, before: str) -> Tensor:
        """The models (F, K, B) of member `before` after more local steps, as member `name`, its opinion said."""
        pace = self.pace.copy()

        def train(ids: np.ndarray | None = None) -> dict[str, Tensor]:
            rows = start
            if ids is not None:
                rows = torch.full_like(start, torch.nan)
                rows[:, ids] = start[:, ids]
            return {"rows": fine_tuned(self.folds(range(self.used), pace), rows, sgd, steps, number)}

        rows = self.once(name, train)["rows"]
        self.say(name, rows, range(self.used))
        floor = np.maximum(self.untrained, self.fit[before])
        return self._again(name, rows, range(self.used), floor, pace, train)

    # --- what is trained ----------------------------------------------------------------------------------------------

    def _rate(self) -> dict[str, Tensor]:
        """The learning rate with the smallest held-out loss after a third of the rounds alone, on the first fold.

        From the middle of the list upwards while the loss falls, or else downwards.
        """
        rates, losses = self.effort.rates, {}
        first, rounds = self.folds([0]), max(1, self.rounds // 3)
        draw = self.streams.words("who tries rates", 0, client_keys(self.names))
        ids = np.sort(np.argsort(draw, kind="stable")[:ASKED])

        def loss(rate: float) -> float:
            sgd = Sgd(**{**self.training, "lr": rate})
            rows = steps_alone(first, self.spec, self.streams, sgd, rounds, ids)[0]
            sound = ids[torch.isfinite(rows[torch.from_numpy(ids)]).all(dim=1).numpy()]
            found = ASTRAY * self.untrained[ids]
            asked = {"rows": rows[torch.from_numpy(sound)]}
            replies = self.clients.ask("evaluate", sound, asked, {"parts": ["validation"]}, bill=False)
            answered = np.searchsorted(ids, replies.ids)
            if len(replies):
                found[answered] = np.fmin(found[answered], replies["validation_loss"].numpy())
            there = self._held(ids) > 0
            return float(found[there].mean()) if there.any() else 0.0

        place = len(rates) // 2
        losses[place] = loss(rates[place])
        for step in (1, -1):
            at = place + step
            while 0 <= at < len(rates):
                losses[at] = loss(rates[at])
                if losses[at] >= losses[at - step]:
                    break
                at += step
            if min(losses, key=lambda one: losses[one]) != place:
                break
        best = min(losses, key=lambda one: (losses[one], one))
        return {"rate": torch.tensor(rates[best], dtype=torch.float64)}

    def _trained(self, name: str, folds: Folds, start: Tensor | None = None, **own: Any) -> TrainedMember:
        method = algorithms.make(name, {**self.sgd.model_dump(), **own})
        return train_member(folds, self.settings(folds), method, self.rounds, self.watch, start, self.cohort)

    def _kin(self, folds: Folds, start: Tensor) -> dict[str, Tensor]:
        found = self._trained("kin", folds, start[: self.used], alone=1 / 3)  # the first stage is `start`
        arrays = {
            key: torch.stack([state.arrays[f"kin_{key}"] for state in found.states]) for key in ("peers", "weights")
        }
        return {"rows": found.rows, **arrays}

    def _fine_tuned(self, name: str, rows: Tensor, left_out: list[str]) -> dict[str, Tensor]:
        """A member after more and more local steps, on one trajectory, as long as held-out samples do not object."""
        found: dict[str, Tensor] = {}
        done, before, sgd = 0, float("inf"), self.sgd.model_dump()
        for number, steps in enumerate(self.effort.fine_tuning):
            longer = f"{name}+{steps}"
            if found and self.losses[f"{name}+{done}"][1] > (1 + WORSENING) * before:
                left_out.append(longer)
                continue
            shorter = f"{name}+{done}" if found else name
            before = self.losses[shorter][1]
            rows = self.stretch(longer, rows, sgd, steps - done, number, shorter)
            found[longer], done = rows, steps
        return found

    def _bayes(self, others: list[str], left_out: list[str]) -> dict[str, Tensor]:
        """pFedBayes where it matters: on the first fold, and on the others if it helps the combination there."""
        name = "pfedbayes"
        own: dict[str, Any] = {
            "lr": 0.01,
            "steps": 5,
            "zeta": 0.1,
            "inner_steps": 2,
            "optimiser": "adam",
            "momentum": 0.0,
        }
        first, rest = self.folds([0]), self.folds(range(1, self.used))
        try:
            algorithms.make(name, own).check(self.settings(first)[0])
        except FedkinError:  # a network it cannot take: the others do without it
            return {}
        rows = self.once(f"{name} in the first fold", lambda: {"rows": self._trained(name, first, **own).rows})["rows"]
        self.say(name, rows, range(1))
        without, together = self.pooled_loss(others, [0]), self.pooled_loss([*others, name], [0])
        if together > (1 - WORTH) * without:
            left_out.append(name)
            self.said.pop(name)
            return {}
        if rest.count:
            more = self.once(name, lambda: {"rows": self._trained(name, rest, **own).rows})["rows"]
            rows = torch.cat([rows, more])
        self.say(name, rows, range(self.used))
        return {name: rows}


def mean_kin(kin: Mapping[str, Tensor]) -> sp.csr_array:
    """The mean over folds of the directed weights with "peers" (F, K, p) and "weights" (F, K, 1 + p)."""
    found = [directed(peers.numpy(), weights.numpy()) for peers, weights in zip(kin["peers"], kin["weights"])]
    total = found[0]
    for more in found[1:]:
        total = sp.csr_array(total + more)
    return sp.csr_array(total / len(found))
