"""Members: ordinary methods trained in every fold, and what more local steps make of their models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin import algorithms
from fedkin.algorithm import Algorithm, Setting, State
from fedkin.algorithms.kin import Kin
from fedkin.errors import FedkinError
from fedkin.local.sgd import Sgd
from fedkin.portfolio.together import Fold, Folds

FINE_TUNING = 1_000_000
"""Fine-tuning draws its batches as rounds from this number on: never those of training."""

WatchMembers = Callable[[str, int, int], None]
"""Told after every round of a member: its name, the round, and how many there are."""


@dataclass(frozen=True)
class TrainedMember:
    """A member's models in every fold, (F, K, B); a client's row is NaN where its training broke off."""

    rows: Tensor
    states: tuple[State, ...] = ()


def train_member(
    folds: Folds,
    settings: tuple[Setting, ...],
    method: Algorithm,
    rounds: int,
    watch: WatchMembers,
    start: TrainedMember | None = None,
) -> TrainedMember:
    """Train a method in all folds, round by round; what its clients would deploy. Private state begins anew.

    For Kin, `start` are models trained alone, from which it estimates its first weights.
    """
    folds.clients.restore({})
    states = [method.start(setting) for setting in settings]

    def begun(fold: Fold) -> State:
        here = settings[fold.number]
        assert start is not None
        assert isinstance(method, Kin)
        return method.estimated(states[fold.number], start.rows[fold.number], fold, here.everyone, here)

    def one_round(fold: Fold) -> State:
        here = settings[fold.number]
        return method.round(states[fold.number], fold, here.everyone, here)

    if start is not None:
        states[:] = folds.each(begun)
    for number in range(1, rounds + 1):
        states[:] = folds.each(one_round)
        watch(method.name, number, rounds)

    def models(fold: Fold) -> Tensor:
        setting, post = settings[fold.number], method.deploys == "trained"
        replies = method.evaluate(states[fold.number], fold, setting, post, [], disclose=True)
        return placed(replies.ids, replies["model"], len(setting))

    return TrainedMember(torch.stack(folds.each(models)), tuple(states))


def fine_tuned(folds: Folds, start: TrainedMember, sgd: Mapping[str, Any], steps: int, number: int) -> TrainedMember:
    """The models after `steps` more local steps on every client."""
    how = {"sgd": {**sgd, "steps": steps}, "round": FINE_TUNING + number, "private": ()}

    def work(fold: Fold) -> Tensor:
        rows = start.rows[fold.number]
        sound = np.flatnonzero(torch.isfinite(rows).all(dim=1).cpu().numpy())
        replies = fold.ask("train", sound, {"rows": rows[torch.from_numpy(sound)]}, how)
        return placed(replies.ids, replies["rows"], len(rows))

    return TrainedMember(torch.stack(folds.each(work)))


def placed(ids: np.ndarray, rows: Tensor, clients: int) -> Tensor:
    """Rows (K, B) with those of `ids` in place and NaN elsewhere."""
    found = torch.full((clients, rows.shape[1]), torch.nan, dtype=rows.dtype)
    found[torch.from_numpy(ids)] = rows
    return found


@dataclass(frozen=True)
class Effort:
    """How much is tried. `folds` None: 3 where the median client has at least 100 samples, else 5."""

    folds: int | None
    used: int | None
    """How many of the folds are held out; None: all."""
    fine_tuning: tuple[int, ...]
    bayes: bool
    rates: tuple[float, ...]
    """Learning rates that a short test on the folds chooses from."""


EFFORTS = {
    "quick": Effort(4, 1, (10, 50), False, (0.03, 0.1, 0.3)),
    "standard": Effort(None, None, (10, 50, 200), True, (0.03, 0.1, 0.3)),
    "thorough": Effort(5, None, (10, 50, 200), True, (0.01, 0.03, 0.1, 0.3, 1.0)),
}


def train_members(
    folds: Folds,
    settings: tuple[Setting, ...],
    effort: Effort,
    training: Mapping[str, Any],
    rounds: int,
    watch: WatchMembers,
) -> dict[str, TrainedMember]:
    """All members by name. Fine-tuned ones share one trajectory: 50 steps go on where 10 ended."""
    sgd = {key: value for key, value in training.items() if key in Sgd.model_fields}
    found: dict[str, TrainedMember] = {
        "local": train_member(folds, settings, algorithms.make("local", sgd), rounds, watch)
    }
    found["fedavg"] = train_member(folds, settings, algorithms.make("fedavg", sgd), rounds, watch)
    kin = algorithms.make("kin", sgd)
    found["kin"] = train_member(folds, settings, kin, rounds, watch, start=found["local"])
    local = Sgd(**sgd).model_dump()
    for name in ("fedavg", "kin"):
        done, now = 0, found[name]
        folds.clients.restore({})
        for number, steps in enumerate(effort.fine_tuning):
            now = fine_tuned(folds, now, local, steps - done, number)
            found[f"{name}+{steps}"], done = now, steps
    if effort.bayes:
        own = {**sgd, "lr": 0.01, "steps": 5, "zeta": 0.1, "inner_steps": 2}
        bayes = algorithms.make("pfedbayes", own)
        try:
            bayes.check(settings[0])
        except FedkinError:  # a network it cannot take: the others do without it
            return found
        found["pfedbayes"] = train_member(folds, settings, bayes, rounds, watch)
    return found
