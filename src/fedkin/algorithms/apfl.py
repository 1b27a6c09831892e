"""APFL: each client mixes its own model with the global one, and learns how much."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms.fedavg import Counting, FedAvg, counted
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, train_chunks
from fedkin.privacy.settings import Planned


class APFL(FedAvg):
    """FedAvg for w; each client's personal model is v̄_k = α_k v_k + (1 − α_k) w_k, w_k its copy of w during training.

        w_k ← w_k − γ ∇f_k(w_k; b)
        v_k ← v_k − γ α_k ∇f_k(v̄_k; b)                          the gradient of f_k(v̄_k) with respect to v_k
        α_k ← clip(α_k − γ ⟨v_k − w_k, ∇f_k(v̄_k; b)⟩, 0, 1)     in the first step of a round, if `adaptive`

        w ← mean_S(w_k)                                          clients count alike; `weights="size"`: by samples

    All three move at once, from the values before the step. v_k (starting at the common initial weights) and α_k live
    with the client. With `adaptive=False`, α = 0 deploys the model of FedAvg (with `weights="size"`)
    after local training, and α = 1 is Local.

    Reference: Deng et al., Adaptive Personalized Federated Learning, 2020.
    """

    name: ClassVar[str] = "apfl"
    title: ClassVar[str] = "APFL"
    deploys: ClassVar[Deploys] = "trained"

    alpha: float = Field(0.5, ge=0, le=1, description="share α of the client's own model, at the start")
    adaptive: bool = Field(True, description="let every client learn its α")
    weights: Counting = Field("equal", description="clients count alike in the average, as in the paper, or by samples")

    def counts(self, setting: Setting) -> np.ndarray:
        return counted(self.weights, setting)

    def planned(self, rounds: int) -> Planned:
        """A batch is asked for two gradients."""
        return super().planned(rounds).model_copy(update={"queries": 2})

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:apfl", shared={"alpha": self.alpha, "adaptive": self.adaptive})


@training_task("apfl")
def train_mixture(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Steps of the global and of the own model on the same batches; the buffers of v̄ are kept with v."""
    ids, shared = request.ids, request.shared
    own = shard.private("own", lambda: shard.spec.initial_row(shard.streams))[ids]
    alpha = shard.private("alpha", lambda: torch.tensor(shared["alpha"], dtype=rows.dtype))[ids]
    mixed = own.clone()

    def work(chunk: Chunk) -> Tensor:
        w, n = chunk.weights, chunk.weights.shape[1]
        mix, share = own[chunk.place], alpha[chunk.place]
        v = mix[:, :n].clone()
        at_w, at_mix = torch.empty_like(v), torch.empty_like(v)
        step_w, step_v = chunk.rule(), chunk.rule("own")
        total = chunk.rows.new_zeros(len(w))
        spare = None if chunk.counters is None else chunk.counters.clone()
        for step, batch in enumerate(chunk.batches()):
            a = batch.active
            part = share[:a, None]
            mix[:a, :n] = part * v[:a] + (1 - part) * w[:a]
            chunk.gradient(mix[:a], batch, at_mix[:a], None if spare is None else spare[:a])
            counted = None if chunk.counters is None else chunk.counters[:a]
            total[:a] += chunk.gradient(chunk.rows[:a], batch, at_w[:a], counted)
            slope = ((v[:a] - w[:a]) * at_mix[:a]).sum(dim=1)
            step_w.step(w[:a], at_w[:a])
            step_v.step(v[:a], part * at_mix[:a])
            if step == 0 and shared["adaptive"]:
                share = (share - chunk.rate * slope).clamp(0, 1)
        mix[:, :n] = share[:, None] * v + (1 - share[:, None]) * w
        mixed[chunk.place] = mix
        own[chunk.place] = torch.cat([v, mix[:, n:]], dim=1)
        alpha[chunk.place] = share
        return chunk.per_step(total)

    trained, loss = train_chunks(shard, ids, rows, Sgd(**shared["sgd"]), shared["round"], work, counters)
    return Trained(trained, loss, personal=mixed, keep={"own": own, "alpha": alpha})
