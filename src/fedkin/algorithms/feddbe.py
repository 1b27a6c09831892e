"""FedDBE: a common network whose features carry no client's bias; each client adds its own back before the head."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms._linear_head import linear_head
from fedkin.algorithms.fedavg import FedAvg
from fedkin.clients import Replies
from fedkin.errors import FedkinError
from fedkin.local.features import part_features, taps
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, train_chunks, train_rows
from fedkin.models.cut import cut
from fedkin.privacy.settings import Level


class FedDBE(FedAvg):
    """FedAvg with a domain bias eliminator: a personal vector b_k, and features whose mean is everybody's.

        round 1:  as FedAvg;  then  z̄ = Σ_S n_k z̄_k / Σ_S n,   z̄_k the mean feature of client k under its trained model
        later:    SGD on  ℓ(head(z + b_k), y) + κ ½‖mean_batch(z) − z̄‖²/d     in (body, head) and b_k
        server:   body and head averaged as in FedAvg;   a client deploys  x ↦ head(z(x) + b_k)

    b_k starts at 0 and never leaves its client. The head is linear, head(z + b) = Wz + (c + Wb), so that the deployed model
    is the network with another bias. *Pre* is the common model without b_k. The mean is that of the batch: the paper's
    running mean with momentum 1. κ = 0 leaves the personal vector alone. A network with the layer `features` before a
    linear head is needed.

    Published code (PFLlib, by the authors) starts its running mean at 0 in every round, so that with a momentum of 0.1 the
    first batch is pulled to 10 z̄.

    Reference: Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, 2023.
    """

    name: ClassVar[str] = "feddbe"
    title: ClassVar[str] = "FedDBE"
    protects: ClassVar[tuple[Level, ...]] = ()
    deploys: ClassVar[Deploys] = "trained"

    kappa: float = Field(5.0, ge=0, description="strength κ that draws the mean feature of a batch to the common mean")
    features: str = Field("features", description="the layer before the head, whose output is the feature")

    def check(self, setting: Setting) -> None:
        size, head = cut(setting.model, setting.task, self.features).size, linear_head(setting.model, self.name)
        if size != head.weight.shape[1]:
            raise FedkinError(f"features = {self.features!r}: the head reads another layer; choose the one before it")

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        mean = {"common_mean": state.arrays["common_mean"]} if "common_mean" in state.arrays else {}
        return LocalWork(f"{__name__}:feddbe", shared={"kappa": self.kappa, "layer": self.features, **mean})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        coupled = super().couple(state, replies, setting)
        if "common_mean" in state.arrays:
            return coupled
        share = torch.as_tensor(setting.sizes[replies.ids] / setting.sizes[replies.ids].sum())
        return coupled.with_arrays(common_mean=share.to(setting.spec.dtype) @ replies["mean_feature"])


def drift(features: Tensor, goal: Tensor, weight: Tensor) -> Tensor:
    """½‖mean(z) − z̄‖²/d, (…, 1), of batches (…, b, d) with weights (…, b) that sum to 1; the goal (…, b, d) repeats z̄."""
    mean = (weight[..., None] * features).sum(dim=-2)
    return 0.5 * (mean - goal[..., 0, :]).square().mean(dim=-1, keepdim=True)


@training_task("feddbe")
def train_unbiased(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Round 1: plain training and the mean feature. Later: steps of the network and of the client's vector."""
    ids, shared, t = request.ids, request.shared, request.shared["round"]
    tap, settings = taps(shard, shared["layer"], shared["kappa"], drift), Sgd(**shared["sgd"])
    if "common_mean" not in shared:
        trained, loss = train_rows(shard, ids, rows, settings, t, counters=counters)
        mean = part_features(shard, ids, trained, tap, "client")["features"]
        return Trained(trained, loss, extra={"mean_feature": mean})
    head, goal = linear_head(shard.spec, "feddbe"), shared["common_mean"].to(rows.dtype)
    vectors = shard.private("domain_bias", lambda: torch.zeros(tap.cut.size, dtype=rows.dtype))[ids]

    def raised(rows: Tensor, vector: Tensor) -> Tensor:
        """Wb (k, C): what a client's vector (k, d) before the head adds to the head's bias c."""
        return torch.einsum("kcd,kd->kc", head.weight.view(rows), vector)

    def work(chunk: Chunk) -> Tensor:
        weights, own, terms = chunk.weights, vectors[chunk.place], settings.terms()
        rule, own_rule = chunk.rule(), chunk.rule("vector", own)
        slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
        total = chunk.rows.new_zeros(len(own))
        kernel = tap.kernels.get()
        kernel.noise = chunk.kernel.noise
        try:
            for batch in chunk.batches():
                a = batch.active
                there, g = chunk.rows[:a], slopes[:a]
                biases = there[:, head.biases].clone()
                there[:, head.biases] += raised(there, own[:a])
                counted = None if chunk.counters is None else chunk.counters[:a]
                goals = goal.expand(*batch.weight.shape, -1)
                total[:a] += kernel.gradient(there, batch._replace(more=(goals, batch.weight)), g, counted)
                there[:, head.biases] = biases
                # With c' = c + Wb: ∂/∂W gains (∂/∂c') bᵀ, ∂/∂b = Wᵀ ∂/∂c'.
                outer = g[:, head.biases]
                own_slopes = torch.einsum("kcd,kc->kd", head.weight.view(there), outer)
                head.weight.view(g).add_(outer[:, :, None] * own[:a, None, :])
                for term in terms:
                    term.add(g, weights[:a])
                    term.add(own_slopes, own[:a])
                rule.step(weights[:a], g)
                own_rule.step(own[:a], own_slopes)
        finally:
            kernel.noise = None
            tap.kernels.put(kernel)
        vectors[chunk.place] = own
        return chunk.per_step(total)

    trained, loss = train_chunks(shard, ids, rows, settings, t, work, counters)
    personal = trained.clone()
    personal[:, head.biases] += raised(trained, vectors)
    return Trained(trained, loss, personal=personal, keep={"domain_bias": vectors})
