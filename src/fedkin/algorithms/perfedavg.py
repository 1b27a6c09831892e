"""Per-FedAvg: a common start from which one gradient step makes a good personal model (model-agnostic meta-learning)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms.fedavg import Counting, FedAvg, counted
from fedkin.clients import Clients, Replies
from fedkin.local.batches import Batch
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, train_chunks
from fedkin.privacy.settings import Level


class PerFedAvg(FedAvg):
    """Minimise Σ_k f_k(w − α∇f_k(w)): FedAvg over local steps on independent batches b, b′, b″.

        u = w − α ∇f_k(w; b)
        first order (default):   w ← w − γ ∇f_k(u; b′)
        Hessian-free:            w ← w − γ (I − α ∇²f_k(w; b″)) ∇f_k(u; b′)

    The gradient at u moves the *original* w. The product with ∇²f is a central difference of gradients. γ is `lr`
    (β in the paper). A client's own model is the received one after a single step of rate α on a training batch, which
    is what *post* reports; test samples are never used. Clients count alike in the average, as in the paper;
    `weights="size"` counts samples, and then α = 0 is FedAvg on the batches b′.

    Reference: Fallah et al., Personalized Federated Learning with Theoretical Guarantees, 2020.
    """

    name: ClassVar[str] = "perfedavg"
    title: ClassVar[str] = "Per-FedAvg"
    protects: ClassVar[tuple[Level, ...]] = ()
    deploys: ClassVar[Deploys] = "trained"

    alpha: float = Field(0.03, ge=0, description="rate α of the personal step")
    hessian_free: bool = Field(False, description="multiply by I − α∇²f (central differences) instead of first order")
    weights: Counting = Field("equal", description="clients count alike in the average, as in the paper, or by samples")

    def counts(self, setting: Setting) -> np.ndarray:
        return counted(self.weights, setting)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        shared = {"alpha": self.alpha, "hessian_free": self.hessian_free}
        return LocalWork(f"{__name__}:perfedavg", shared=shared)

    def evaluate(
        self, state: State, clients: Clients, setting: Setting, post: bool, parts: list[str], disclose: bool = False
    ) -> Replies:
        """*post* is the personal model: one step of rate α on a training batch (rate 0: no step)."""
        if not post or self.alpha == 0:
            return super().evaluate(state, clients, setting, False, parts, disclose)
        one_step: dict[str, Any] = {
            "lr": self.alpha,
            "steps": 1,
            "batch_size": self.batch_size,
            "weight_decay": self.weight_decay,
        }
        return FedAvg(**one_step).evaluate(state, clients, setting, True, parts, disclose)


@training_task("perfedavg")
def meta_training(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Local meta-steps; every step draws two independent batches, three with the Hessian."""
    settings, alpha = Sgd(**request.shared["sgd"]), request.shared["alpha"]
    exact = request.shared["hessian_free"] and alpha > 0

    def work(chunk: Chunk) -> Tensor:
        weights, rule = chunk.weights, chunk.rule()
        n = weights.shape[1]
        slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
        total = chunk.rows.new_zeros(len(weights))
        bends = chunk.batches("bend") if exact else None
        for batch, other in zip(chunk.batches(), chunk.batches("outer")):
            a = batch.active
            here, g = chunk.rows[:a], slopes[:a]
            counted = None if chunk.counters is None else chunk.counters[:a]
            total[:a] += chunk.gradient(here, batch, g, counted)
            stepped = here.clone()
            stepped[:, :n].sub_(g, alpha=alpha)
            chunk.gradient(stepped, other, g, counted)
            here[:, n:] = stepped[:, n:]
            if bends is not None:
                g.sub_(curvature(chunk, here, next(bends), g), alpha=alpha)
            rule.step(weights[:a], g)
        return chunk.per_step(total)

    trained, loss = train_chunks(shard, request.ids, rows, settings, request.shared["round"], work, counters)
    return Trained(trained, loss)


def curvature(chunk: Chunk, rows: Tensor, batch: Batch, direction: Tensor) -> Tensor:
    """∇²f(w)·d ≈ (∇f(w + δd) − ∇f(w − δd)) / 2δ for stacked clients, (a, P), with δ‖d‖ = ε^(1/3)·(1 + ‖w‖)."""
    n = direction.shape[1]
    reach = torch.finfo(rows.dtype).eps ** (1 / 3) * (1 + rows[:, :n].norm(dim=1, keepdim=True))
    delta = reach / direction.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    same_dropout = chunk.replay()
    ends = []
    for sign in (1, -1):
        same_dropout()
        probe = rows.clone()
        probe[:, :n].add_(sign * delta * direction)
        ends.append(torch.empty_like(direction))
        chunk.gradient(probe, batch, ends[-1])
    return (ends[0] - ends[1]) / (2 * delta)
