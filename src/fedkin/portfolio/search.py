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
from fedkin.portfolio.effort import Effort, climbed
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
ASTRAY = 10.0
"""A model whose loss on a client's training samples is so many times the untrained model's is none for that client."""
EXPLODED = 1e6
"""Nor is one with a parameter beyond this: units that are dead on all of a client's samples can hide it from every loss."""
ADAM = 0.01
"""The rate of Adam, where it is tried."""
FEW = 0.1
"""A way of training is no choice where it goes astray for a larger share of the clients."""

TrainWith = Callable[[Folds, Mapping[str, Any]], Mapping[str, Tensor]]
"""Trains a method in some folds with settings of its own."""


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
    ways: Mapping[str, Mapping[str, Any]]
    """How FedAvg and Kin trained, where they did not at the rate."""
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
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How FedAvg and Kin train: "lr" and perhaps "optimiser"."""

    # --- parts --------------------------------------------------------------------------------------------------------

    def folds(self, numbers: Sequence[int]) -> Folds:
        return Folds(self.clients, self.names, numbers)

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
        models = rows[: len(folds)].flatten(0, 1)
        exploded = ~(models.abs().amax(dim=1) <= EXPLODED)  # NaN, too
        limit = torch.from_numpy(np.tile(ASTRAY * self.untrained, len(folds))).where(~exploded, -1.0)
        replies = self.clients.ask(SAY, ids, {"models": models, "limit": limit}, {"member": member, "grid": grid})
        self.fit[member] = np.full((len(folds), size), NO_FIT)
        self.fit[member].ravel()[replies.ids - ids[0]] = replies["fit"].numpy()
        self.fit[member][exploded.view(len(folds), size).numpy()] = NO_FIT
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
        common = self._together("fedavg", self._common)
        kin = self._together("kin", lambda folds, how: self._kin(folds, local, how))
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
        return Found(members, local[self.used], weighed, mean_kin(kin), rate, self.ways, tuple(left_out))

    # --- training that may go astray ----------------------------------------------------------------------------------

    def alone(self, sgd: Sgd) -> Tensor:
        """Local in every fold and on everything, (F + 1, K, B), its opinion said. `cohort` is what it teaches.

        Clients whose training grows without bound halve their rate (`local/steady.py`). Who goes astray at any rate is no part
        of the cohort: it does not train with the others.
        """
        numbers = range(self.used + 1)
        how = self.spec, self.streams, sgd, self.rounds
        rows = self.once("local", lambda: {"rows": steps_alone(self.folds(numbers), *how)})["rows"]
        self.say("local", rows, numbers)
        self.cohort = np.flatnonzero((self.fit["local"] <= ASTRAY * self.untrained).all(axis=0))
        return rows

    def _together(self, name: str, train: TrainWith) -> dict[str, Tensor]:
        """A method trained in every fold in the way that does best on the first, its opinion said."""
        how, first = self._best_way(name, train)
        self.ways[name] = how
        rest = self.folds(range(1 if first else 0, self.used))
        made = self.once(f"{name}, other folds" if first else name, lambda: train(rest, how)) if rest.count else first
        made = {key: torch.cat([first[key], made[key]]) for key in made} if first and rest.count else made
        self.say(name, made["rows"], range(self.used))
        return made

    def _best_way(self, name: str, train: TrainWith) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """How a method trains in all folds, and what it made of the first: with the rate, or Adam, whose models do best there.

        They are judged as received or after a few local steps, whichever is better: models that rounds at a large rate keep
        unsettled are good beginnings. Trials of a third of the rounds were tried, and favour what is fast at first (Adam). Where
        the user has said the rate nothing is tried.
        """
        multiples = self.effort.together.get(name, ())
        if self.training.get("lr") or not multiples:
            return {"lr": self.sgd.lr}, {}
        tried: list[tuple[dict[str, Any], dict[str, Tensor], float]] = []
        alone = self.folds([0])

        def loss(rate: float, **own: Any) -> float:
            how = {"lr": rate, **own}
            named = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in how.values())
            made = self.once(f"{name} with {named} in the first fold", lambda: train(alone, how))
            found = self.say(name, made["rows"], range(1))
            astray = self._astray(name)
            more = fine_tuned(alone, made["rows"], self.sgd.model_dump(), self.effort.fine_tuning[0], 0)
            found = float("inf") if astray else min(found, self.say(name, more, range(1)))
            tried.append((how, made, found))
            return found

        climbed([self.sgd.lr * times for times in multiples], loss)
        if self.effort.adam and not {"optimiser", "momentum"} & self.training.keys():
            loss(ADAM, optimiser="adam")
        how, made, _ = min(tried, key=lambda one: one[2])
        return how, made

    def _astray(self, name: str) -> bool:
        """Whether a member went astray for many of those who train with the others."""
        lost = np.any(self.fit[name] > ASTRAY * self.untrained, axis=0)[self.cohort]
        return bool(len(lost) and lost.mean() > FEW)

    def stretch(self, name: str, start: Tensor, sgd: Mapping[str, Any], steps: int, number: int) -> Tensor:
        """The models (F, K, B) after more local steps, as member `name`, its opinion said."""

        def train() -> dict[str, Tensor]:
            return {"rows": fine_tuned(self.folds(range(self.used)), start, sgd, steps, number)}

        rows = self.once(name, train)["rows"]
        self.say(name, rows, range(self.used))
        return rows

    # --- what is trained ----------------------------------------------------------------------------------------------

    def _rate(self) -> dict[str, Tensor]:
        """The learning rate with the smallest held-out loss after a third of the rounds alone, on the first fold."""
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

        return {"rate": torch.tensor(climbed(self.effort.rates, loss), dtype=torch.float64)}

    def _trained(self, name: str, folds: Folds, how: Mapping[str, Any], start: Tensor | None = None) -> TrainedMember:
        method = algorithms.make(name, {**self.sgd.model_dump(), **how})
        return train_member(folds, self.settings(folds), method, self.rounds, self.watch, start, self.cohort)

    def _common(self, folds: Folds, how: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"rows": self._trained("fedavg", folds, how).rows}

    def _kin(self, folds: Folds, start: Tensor, how: Mapping[str, Any]) -> dict[str, Tensor]:
        own = start[torch.tensor(folds.numbers)]
        found = self._trained("kin", folds, {**how, "alone": 1 / 3}, own)  # the first stage is `start`
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
            rows = self.stretch(longer, rows, sgd, steps - done, number)
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

        def train(folds: Folds) -> dict[str, Tensor]:
            return {"rows": self._trained(name, folds, own).rows}

        rows = self.once(f"{name} in the first fold", lambda: train(first))["rows"]
        self.say(name, rows, range(1))
        without, together = self.pooled_loss(others, [0]), self.pooled_loss([*others, name], [0])
        if together > (1 - WORTH) * without:
            left_out.append(name)
            self.said.pop(name)
            return {}
        if rest.count:
            more = self.once(f"{name}, other folds", lambda: train(rest))["rows"]
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
