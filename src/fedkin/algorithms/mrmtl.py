"""MR-MTL: every client keeps a model of its own, pulled towards the mean of all models while it trains."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, mix
from fedkin.clients import Replies
from fedkin.couplings import Average
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.terms import Pull
from fedkin.local.training import train_rows
from fedkin.privacy.settings import Level


class MRMTL(Algorithm):
    """Mean-regularised multi-task learning: min Σ_k f_k(w_k) + (λ/2)‖w_k − w̄‖², w̄ the mean of all w_k.

        client:  w_k ← w_k − γ (∇f_k(w_k) + λ (w_k − w̄)),   w̄ as received, from the client's own w_k of its last round
        server:  w̄ ← mean of the w_k of those who took part

    Unlike Ditto there is one model per client, and the mean is that of the personal models, not FedAvg's. w_k starts at
    the common initial weights and never changes in rounds the client sits out. λ = 0 is Local; as λ → ∞ all models become
    one. Clients count alike in the mean, as in the paper. Keep γλ below 1.

    Published code (kenziyuliu/private-cross-silo-fl) starts every client at weights of its own and w̄ at those of the first,
    then adds to w̄ the weighted mean of the updates: w̄ is the mean of the w_k only up to where they started.

    The paper adds noise for differential privacy per sample in the same step: here that is `privacy`, for any method.

    Reference: Liu, Hu, Wu and Smith, On Privacy and Personalization in Cross-Silo Federated Learning, 2022.
    """

    name: ClassVar[str] = "mrmtl"
    title: ClassVar[str] = "MR-MTL"
    protects: ClassVar[tuple[Level, ...]] = ("sample", "client")
    along_edges: ClassVar[bool] = True
    deploys: ClassVar[Deploys] = "trained"

    lam: float = Field(1.0, ge=0, description="pull λ of a client's model towards the mean of all")

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:mrmtl", shared={"lam": self.lam})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        return mix(state, replies, Average(np.ones(len(setting)), replies.ids))


@training_task("mrmtl")
def train_own(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Train the client's own model with a pull towards the received mean."""
    settings, t = Sgd(**request.shared["sgd"]), request.shared["round"]
    own = shard.private("personal", lambda: shard.spec.initial_row(shard.streams))[request.ids]
    pull = [Pull(request.shared["lam"], rows[:, : shard.spec.layout.n_parameters])]
    personal, loss = train_rows(shard, request.ids, own, settings, t, pull, counters)
    return Trained(personal, loss, start=own, keep={"personal": personal})
