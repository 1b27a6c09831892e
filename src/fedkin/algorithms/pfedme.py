"""pFedMe: personal models as proximal points of a common one (Moreau envelopes)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedkin.algorithm import Algorithm, Deploys, LocalWork, Setting, State, mix, stretched
from fedkin.clients import Replies
from fedkin.couplings import Average
from fedkin.errors import FedkinError
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, train_chunks
from fedkin.privacy.settings import Level, Planned


class PFedMe(Algorithm):
    """Minimise Σ_k min_θ f_k(θ) + (λ/2)‖θ − w‖². Each local step, on one batch b:

        inner_steps times:   θ ← θ − γ_p (∇f_k(θ; b) + λ (θ − w_k))
        w_k ← w_k − γ λ (w_k − θ)
        server:  w ← (1 − β) w + β·mean_S(w_k)

    The inner steps are gradient descent on a function of smoothness λ + β_k, with β_k that of f_k: they stay bounded only
    while γ_p(λ + β_k) < 2; γ_p·λ < 2 is checked before the run. With γ = 1/λ, the default, a step takes w_k to θ.

    θ, the personal model, starts each round at the received w. Running statistics sent to the server are those of θ.

    Reference: Dinh et al., Personalized Federated Learning with Moreau Envelopes, 2020.
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    protects: ClassVar[tuple[Level, ...]] = ("sample",)
    deploys: ClassVar[Deploys] = "trained"

    own_rate: ClassVar[bool] = True

    lr: float = Field(1.0, gt=0, description="rate γ of the common model; γλ is its step towards θ (default: 1/lam)")
    lam: float = Field(1.0, gt=0, description="pull λ between the personal and the common model")
    inner_steps: int = Field(5, ge=1, description="steps on θ per batch")
    personal_lr: float = Field(
        0.05, gt=0, description="rate γ_p of the steps on θ; keep γ_p(λ + smoothness of f_k) below 2"
    )
    beta: float = Field(1.0, gt=0, description="step β of the server towards the mean of the clients")

    @model_validator(mode="before")
    @classmethod
    def _step_to_theta(cls, given: Any) -> Any:
        """γ = 1/λ where only λ is given."""
        lam = given.get("lam") if isinstance(given, dict) else None
        return {"lr": 1 / lam, **given} if isinstance(lam, int | float) and 0 < lam < math.inf else given

    def check(self, setting: Setting) -> None:
        if self.personal_lr * self.lam >= 2:
            raise FedkinError(
                f"pfedme: personal_lr·lam = {self.personal_lr * self.lam:g} lets the inner steps grow without bound; keep "
                f"personal_lr below {2 / self.lam:g}, less the steeper the loss (γ_p(λ + smoothness) < 2)"
            )

    def planned(self, rounds: int) -> Planned:
        """A batch is asked for a gradient in every inner step."""
        return super().planned(rounds).model_copy(update={"queries": self.inner_steps})

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        shared = {
            "lam": self.lam,
            "inner_steps": self.inner_steps,
            "personal_lr": self.personal_lr,
            "rates": ("personal_lr",),
        }
        return LocalWork(f"{__name__}:pfedme", shared=shared)

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        trained = stretched(state, replies, self.beta, setting)
        return mix(state, replies, Average(np.ones(len(setting)), replies.ids), trained=trained)


@training_task("pfedme")
def envelope_training(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Steps of the common model towards the proximal point θ, which is found by gradient steps of its own."""
    shared = request.shared
    lam, inner_steps, personal_lr = shared["lam"], shared["inner_steps"], shared["personal_lr"]
    personal = rows.clone()

    def work(chunk: Chunk) -> Tensor:
        common, rule = chunk.weights, chunk.rule()
        n = common.shape[1]
        own = chunk.rows.clone()
        theta = own[:, :n]
        slopes = torch.empty_like(theta, memory_format=torch.contiguous_format)
        total = chunk.rows.new_zeros(len(common))
        for batch in chunk.batches():
            a = batch.active
            g, counted = slopes[:a], None if chunk.counters is None else chunk.counters[:a]
            for step in range(inner_steps):
                loss = chunk.gradient(own[:a], batch, g, counted)
                total[:a] += loss if step == 0 else 0
                theta[:a].sub_(g + lam * (theta[:a] - common[:a]), alpha=personal_lr)
            rule.step(common[:a], lam * (common[:a] - theta[:a]))
        chunk.rows[:, n:] = own[:, n:]
        personal[chunk.place] = own
        return chunk.per_step(total)

    settings = Sgd(**shared["sgd"])
    trained, loss = train_chunks(shard, request.ids, rows, settings, shared["round"], work, counters)
    return Trained(trained, loss, personal=personal)
