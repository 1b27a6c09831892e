"""Ditto: a global model by FedAvg, and beside it a personal one that is pulled towards it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms.fedavg import FedAvg
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.terms import Pull
from fedkin.local.training import train_rows
from fedkin.privacy.settings import Planned


class Ditto(FedAvg):
    """FedAvg for w; each client also keeps a personal v_k that minimises f_k(v) + (λ/2)‖v − w‖².

        v_k ← v_k − γ (∇f_k(v_k) + λ (v_k − w)),   w the global model as received, before this round's training

    Both models use the same batches and rate. v_k starts at the common initial weights, lives with the client and moves
    only in rounds it takes part in. λ = 0 is Local. The authors try λ in 0.1, 1, 2.

    Reference: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, 2021.
    """

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    deploys: ClassVar[Deploys] = "trained"

    lam: float = Field(1.0, ge=0, description="pull λ of the personal model towards the global one")

    def planned(self, rounds: int) -> Planned:
        """Two models are trained."""
        once = super().planned(rounds)
        return once.model_copy(update={"epochs": 2 * once.epochs, "steps": 2 * once.steps})

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:ditto", shared={"lam": self.lam})


@training_task("ditto")
def train_both(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Train the global model from the received row, and the personal one with a pull towards that row."""
    settings, t, lam = Sgd(**request.shared["sgd"]), request.shared["round"], request.shared["lam"]
    own = shard.private("personal", lambda: shard.spec.initial_row(shard.streams))[request.ids]
    anchor = rows[:, : shard.spec.layout.n_parameters]
    pull = [Pull(lam, anchor)]
    personal, _ = train_rows(shard, request.ids, own, settings, t, pull, counters.clone(), label="personal")
    trained, loss = train_rows(shard, request.ids, rows, settings, t, counters=counters)
    return Trained(trained, loss, personal=personal, keep={"personal": personal})
