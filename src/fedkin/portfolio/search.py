"""The search: a learning rate, members in every fold, which of them are worth more training, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from fedkin.portfolio.evidence import ERRORS, SAY
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

    # --- parts --------------------------------------------------------------------------------------------------------

    def folds(self, numbers: Sequence[int]) -> Folds:
        return Folds(self.clients, self.names, numbers)

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
        per_client = {"models": rows[: len(folds)].flatten(0, 1)}
        replies = self.clients.ask(SAY, ids, per_client, {"member": member, "grid": grid})
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
        if not self.task.one_label:
            return None
        return np.array([TEMPERATURES[self.losses[member][0]] for member in members])

    def pooled_loss(self, members: Sequence[str], folds: Sequence[int]) -> float:
        """The held-out loss of the best pooled combination."""
        told = self.told(members, folds)
        pool = mixed_pool(told) if self.task.one_label else least_squares_pool(told, told.ask(ERRORS)["gram"])
        return float(pool[1][-1])

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> Found:
        rate = float(self.training.get("lr") or self.once("rate", self._rate)["rate"])
        self.sgd = Sgd(**{**self.training, "lr": rate})
        everything, held = self.folds(range(self.used + 1)), self.folds(range(self.used))
        how = self.spec, self.streams, self.sgd, self.rounds
        local = self.once("local", lambda: {"rows": steps_alone(everything, *how)})["rows"]
        self.watch("local", self.rounds, self.rounds)
        members = {"local": local[: self.used]}
        common = self.once("fedavg", lambda: {"rows": self._trained("fedavg", held).rows})
        kin = self.once("kin", lambda: self._kin(held, local))
        members |= {"fedavg": common["rows"], "kin": kin["rows"]}
        for name, rows in members.items():
            self.say(name, rows, range(self.used))
        left_out: list[str] = []
        for name in ("fedavg", "kin"):
            members |= self._fine_tuned(name, members[name], held, left_out)
        if self.effort.bayes:
            members |= self._bayes(list(members), left_out)
        told = self.told(list(members), range(self.used))
        warmth = self.warmth(list(members))
        temperatures = np.ones(len(members)) if warmth is None else warmth
        weighed = weigh(told, temperatures, self.task.one_label)
        return Found(members, local[self.used], weighed, mean_kin(kin), rate, tuple(left_out))

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
            if len(sound) < len(ids):
                return float("inf")
            asked = {"rows": rows[torch.from_numpy(ids)]}
            replies = self.clients.ask("evaluate", ids, asked, {"parts": ["validation"]}, bill=False)
            there = replies["validation_count"] > 0
            return float(replies["validation_loss"][there].clamp(max=1e6).mean()) if bool(there.any()) else 0.0

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
        return train_member(folds, self.settings(folds), method, self.rounds, self.watch, start)

    def _kin(self, folds: Folds, start: Tensor) -> dict[str, Tensor]:
        found = self._trained("kin", folds, start[: self.used], alone=1 / 3)  # the first stage is `start`
        arrays = {
            key: torch.stack([state.arrays[f"kin_{key}"] for state in found.states]) for key in ("peers", "weights")
        }
        return {"rows": found.rows, **arrays}

    def _fine_tuned(self, name: str, rows: Tensor, folds: Folds, left_out: list[str]) -> dict[str, Tensor]:
        """A member after more and more local steps, on one trajectory, as long as held-out samples do not object."""
        found: dict[str, Tensor] = {}
        done, before, sgd = 0, float("inf"), self.sgd.model_dump()
        for number, steps in enumerate(self.effort.fine_tuning):
            longer = f"{name}+{steps}"
            if found and self.losses[f"{name}+{done}"][1] > (1 + WORSENING) * before:
                left_out.append(longer)
                continue
            before = self.losses[f"{name}+{done}" if found else name][1]
            start, more = rows, steps - done
            rows = self.once(longer, lambda: {"rows": fine_tuned(folds, start, sgd, more, number)})["rows"]  # noqa: B023
            self.say(longer, rows, range(self.used))
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
