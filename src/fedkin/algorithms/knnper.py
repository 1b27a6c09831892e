"""kNN-Per: FedAvg's model, and on each client a memory of its own samples whose nearest neighbours vote with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms.fedavg import FedAvg
from fedkin.errors import FedkinError
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, private_columns, training_task
from fedkin.local.training import train_rows
from fedkin.models import ModelLike, ModelSpec
from fedkin.models.memory import MEMORY, Remembering, with_memory
from fedkin.privacy.settings import Level
from fedkin.streams import permutations
from fedkin.task import Task

SHARES = torch.linspace(0, 1, 11, dtype=torch.float64)
"""The λ that a client tries."""


class KNNPer(FedAvg):
    """Personalisation through local memorisation: rounds are FedAvg's; each client then mixes two predictions.

        p(y | x) = (1 − λ_k) softmax(f(x))_y + λ_k Σ_{i in the k nearest} w_i [y_i = y],   w = softmax(−‖h(x) − h(x_i)‖/σ)

    h are the features of the received model, x_i the client's training samples (`capacity` of them at most, drawn at
    random). λ_k is the best of 0, 0.1, …, 1 by log-loss on the client's validation samples; a client without any takes its
    training samples, each without its own memory, which trusts the network too much where it has fitted them. *Pre* is
    FedAvg's model, *post* the mixture, without further training. The memory is part of the deployed module and never
    travels. `lam=0` is FedAvg. Classes only.

    Published code (omarfoq/knn-per) scores its grid of λ on the clients' *test* samples, and has w_i ∝ exp(−‖·‖²/dσ), d the
    number of features.

    Reference: Marfoq, Neglia, Kameni and Vidal, Personalized Federated Learning through Local Memorization, 2022.
    """

    name: ClassVar[str] = "knnper"
    title: ClassVar[str] = "kNN-Per"
    protects: ClassVar[tuple[Level, ...]] = ()
    deploys: ClassVar[Deploys] = "trained"

    neighbours: int = Field(10, ge=1, description="nearest memories k that vote")
    lam: float | None = Field(None, ge=0, le=1, description="share λ of the votes (default: each client chooses)")
    scale: float = Field(1.0, gt=0, description="distance σ at which a memory's vote falls to 1/e")
    capacity: int = Field(512, ge=1, description="samples that a client remembers at most")
    features: str = Field("features", description="the layer whose output is compared")

    @property
    def remembers(self) -> tuple[str, int, int, float]:
        return self.features, self.capacity, self.neighbours, self.scale

    def model_spec(self, model: ModelLike, names: tuple[str, ...], task: Task, dtype: torch.dtype) -> ModelSpec:
        if not task.classes:
            raise FedkinError("knnper lets memories vote on classes, but this task has none; choose another method")
        return with_memory(super().model_spec(model, names, task, dtype), task, *self.remembers)

    def private(self, setting: Setting) -> tuple[str, ...]:
        return MEMORY

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:knnper", shared={"remember": False, "lam": self.lam})

    def for_post(self, state: State) -> Mapping[str, Any]:
        return {"remember": True}


@training_task("knnper")
def train_or_remember(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Plain training of the network inside; or no training, but memories of the client's samples."""
    found = rows.clone()
    if request.shared["remember"]:
        for place, k in enumerate(request.ids):
            remember_features(shard, int(k), found[place : place + 1], counters[place], request.shared["lam"])
        return Trained(found, rows.new_zeros(len(rows)))
    memory = private_columns(shard, request)
    assert memory is not None
    if "network" not in shard.made:
        shard.made["network"] = shard.with_model(network_of(shard.spec))
    inside: Shard = shard.made["network"]
    settings, t = Sgd(**request.shared["sgd"]), request.shared["round"]
    found[:, ~memory], loss = train_rows(inside, request.ids, rows[:, ~memory], settings, t, counters=counters)
    return Trained(found, loss)


def network_of(spec: ModelSpec) -> ModelSpec:
    """The network without its memory."""

    def inside(whole: torch.nn.Module) -> torch.nn.Module:
        assert isinstance(whole, Remembering)
        return whole.network

    bare = replace(spec, layout=spec.layout.without(MEMORY))
    return bare.seen_as(inside, lambda name: name.removeprefix("network."))


def remember_features(shard: Shard, k: int, row: Tensor, counters: Tensor, lam: float | None) -> None:
    """Fill the memory of client k in its row (1, B), in place, and choose its λ."""
    whole = shard.spec.module(row[0], counters)
    assert isinstance(whole, Remembering)
    x, y = shard.train.of(k)
    order = permutations(shard.streams.words("memory", 0, shard.keys[k : k + 1]), shard.train.sizes[k : k + 1])[0]
    kept = torch.as_tensor(order[: len(whole.keys)].copy())
    with torch.no_grad():
        outputs, features = whole.seen(x)
        whole.keys[: len(kept)] = features[kept]
        whole.votes[: len(kept)] = torch.nn.functional.one_hot(y[kept], whole.classes).to(row.dtype)
        whole.held[: len(kept)] = 1
        own = torch.full((len(x),), -1)
        own[kept] = torch.arange(len(kept))
        if shard.validation.sizes[k]:
            (x, y), own = shard.validation.of(k), torch.tensor([-1])
            outputs, features = whole.seen(x)
        told = whole.told(features, own)
        losses = [float(torch.nn.functional.nll_loss(whole.mixed(outputs, told, float(s)), y)) for s in SHARES]
        whole.share.fill_(float(SHARES[int(np.argmin(losses))]) if lam is None else lam)
    row[0] = shard.spec.layout.pack(whole, row.dtype)
