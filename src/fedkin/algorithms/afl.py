"""AFL: one model for the worst mixture of clients (agnostic federated learning)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Algorithm, LocalWork, Setting, State, mix
from fedkin.clients import Clients, Replies
from fedkin.couplings import Average
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import evaluate_rows, train_rows


class AFL(Algorithm):
    """min_w max_{λ in the simplex} Σ_k λ_k f_k(w): descend in w, ascend in λ.

        w ← Σ_{k∈S} λ_k w_k / Σ_S λ,   w_k trained from w
        λ ← Π(λ + γ_λ f),   f_k(w) the training loss of the model client k received (0 outside S),
                            Π the Euclidean projection on the simplex

    λ starts uniform and belongs to client names, not to places in a cohort. With `steps=1` this is the stochastic
    gradient method of the paper; more steps make it local-update AFL. The model handed out at the end is the last
    iterate; `average=True` hands out the average of all, as the paper's theory has it. γ_λ = 0 is FedAvg with equal weights.

    Reference: Mohri et al., Agnostic Federated Learning, 2019.
    """

    name: ClassVar[str] = "afl"
    title: ClassVar[str] = "AFL"

    gamma_lambda: float = Field(0.001, ge=0, description="step size γ_λ of the mixture weights")
    average: bool = Field(False, description="evaluate and hand out the average of all iterates, not the last")

    def start(self, setting: Setting) -> State:
        state = super().start(setting)
        uniform = torch.full((len(setting),), 1 / len(setting), dtype=torch.float64)
        return state.with_arrays(mixture=uniform, average=state.rows[0].clone())

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:afl")

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        mixture, ids = state.arrays["mixture"], torch.as_tensor(replies.ids)
        if mixture[ids].sum() > 0:  # else nobody who answered has a say: the model stays
            state = mix(state, replies, Average(mixture.cpu().numpy(), replies.ids))
        ascended = mixture.clone()
        ascended[ids] += self.gamma_lambda * replies["risk"]
        projected = torch.as_tensor(project_to_simplex(ascended.cpu().numpy()))
        past, t = state.arrays["average"], state.round + 1
        mean = past + (state.rows[0] - past) / t if t > 1 else state.rows[0].clone()
        state = state.with_log(largest_weight=float(projected.max()))
        return state.with_arrays(mixture=projected, average=mean)

    def evaluate(
        self, state: State, clients: Clients, setting: Setting, post: bool, parts: list[str], disclose: bool = False
    ) -> Replies:
        if self.average:
            state = state.with_arrays(rows=state.arrays["average"].expand(len(setting), -1))
        return super().evaluate(state, clients, setting, post, parts, disclose)


@training_task("afl")
def train_and_tell_risk(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Plain training, and the loss f_k(w) of the received model on all training samples."""
    settings = Sgd(**request.shared["sgd"])
    risk = evaluate_rows(shard, request.ids, rows, "train")["loss"]
    trained, loss = train_rows(shard, request.ids, rows, settings, request.shared["round"], counters=counters)
    return Trained(trained, loss, extra={"risk": risk})


def project_to_simplex(point: np.ndarray) -> np.ndarray:
    """The nearest point (Euclidean) with entries ≥ 0 that sum to 1: max(x − τ, 0) with the τ that makes the sum 1.

    >>> project_to_simplex(np.array([0.5, 0.9, -1.0]))
    array([0.3, 0.7, 0. ])
    """
    falling = np.sort(point)[::-1]
    excess = (np.cumsum(falling) - 1) / np.arange(1, len(point) + 1)
    return np.maximum(point - excess[falling > excess][-1], 0)
