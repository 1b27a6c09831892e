"""FedRoD: one body, two heads: a generic one trained as if classes were balanced, and a personal one beside it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms._linear_head import LinearHead, linear_head
from fedkin.algorithms.fedavg import FedAvg
from fedkin.local.batches import Batch
from fedkin.local.kernels.linear import LinearKernel
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, train_chunks
from fedkin.privacy.settings import Level


class FedRoD(FedAvg):
    """FedAvg on a class-balanced loss; each client adds the logits of a personal head H_k fitted to its own classes.

        generic:   (body, G) ← (body, G) − γ ∇ ℓ(G z + log π_k, y)     π_k the client's class counts (balanced softmax)
        personal:  H_k ← H_k − γ ∇_H ℓ(G z + H z, y)                    body and G as they are: no gradient reaches them
        server:    body, G averaged as in FedAvg;   a client deploys  x ↦ (G + H_k) z(x)

    Both move at once, on the same batches. Heads are linear, so that the deployed model is the network with head G + H_k.
    H_k starts at 0, lives with the client and moves only in rounds it takes part in. *Pre* is the generic model, *post*
    the personal one. `balanced=False` trains the generic model as FedAvg does; so does a regression, which has no classes.
    A class that a client has not enters log π_k as 10⁻⁹ samples. Networks other than
    chains of linear layers take two gradients per step. (The paper's second
    form makes H_k by a hypernetwork; it is not here.)

    PFLlib starts H_k as a copy of G, which counts G twice, and takes log 0 for missing classes.

    Reference: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.
    """

    name: ClassVar[str] = "fedrod"
    title: ClassVar[str] = "FedRoD"
    protects: ClassVar[tuple[Level, ...]] = ()
    deploys: ClassVar[Deploys] = "trained"

    balanced: bool = Field(True, description="train the generic model with the balanced softmax")

    def check(self, setting: Setting) -> None:
        linear_head(setting.model, self.name)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:fedrod", shared={"balanced": self.balanced})


def log_counts(shard: Shard, ids: np.ndarray) -> Tensor:
    """log π_k: the logarithm of each client's training samples per class, (k, C); zeros for a regression."""
    if not shard.task.classes:
        return torch.zeros((len(ids), shard.task.outputs), dtype=shard.spec.dtype)
    counts = [torch.bincount(shard.train.targets(int(k)), minlength=shard.task.outputs) for k in ids]
    return torch.stack(counts).to(shard.spec.dtype).clamp(min=1e-9).log()


def in_one_pass(
    kernel: LinearKernel, rows: Tensor, batch: Batch, head: LinearHead, own: Tensor, prior: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient of the generic model into `out` (a, P); its losses (a,) and the gradient of the personal heads (a, H).

    Both heads read the same features, so that one pass forward and one back serve both.
    """
    went = kernel.ahead(rows, batch.x, batch.weight)
    features, generic = went.a[-2], went.outputs
    weight, bias = own[:, : -generic.shape[1]], own[:, -generic.shape[1] :]
    personal = torch.baddbmm(bias[:, :, None] + generic, weight.view(len(own), *head.weight.shape), features)
    _, delta = kernel.output_gradient(personal, batch.y, batch.weight)
    own_slopes = torch.cat([torch.bmm(delta, features.transpose(1, 2)).flatten(1), delta.sum(dim=2)], dim=1)
    loss, delta = kernel.output_gradient(generic + prior[:, :, None], batch.y, batch.weight)
    kernel.back(went, delta, out)
    return loss, own_slopes


def in_two_passes(
    chunk: Chunk, batch: Batch, head: LinearHead, own: Tensor, prior: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """The same for any network: the gradient of each head with the network whole, on the same dropout."""
    rows, n, same_dropout = chunk.rows[: len(own)], out.shape[1], chunk.replay()
    both, spare = rows.clone(), torch.empty_like(out)
    both[:, head.columns] += own
    chunk.kernel.gradient(both, batch, spare)
    same_dropout()
    shifted = rows.clone()
    shifted[:, head.biases] += prior
    counted = None if chunk.counters is None else chunk.counters[: len(own)]
    loss = chunk.kernel.gradient(shifted, batch, out, counted)
    rows[:, n:] = shifted[:, n:]
    return loss, spare[:, head.columns].contiguous()


@training_task("fedrod")
def train_two_heads(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Steps of the generic model on shifted logits, and of the personal head on the sum of both."""
    ids, shared = request.ids, request.shared
    head, settings = linear_head(shard.spec, "fedrod"), Sgd(**shared["sgd"])
    size = head.bias.stop - head.weight.start
    personal = shard.private("personal_head", lambda: torch.zeros(size, dtype=rows.dtype))[ids]
    shift = log_counts(shard, ids) if shared["balanced"] else torch.zeros((len(ids), head.bias.shape[0])).to(rows)

    def work(chunk: Chunk) -> Tensor:
        weights, own, prior = chunk.weights, personal[chunk.place], shift[chunk.place]
        terms = settings.terms()
        step_generic, step_personal = chunk.rule(), chunk.rule("personal", own)
        slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
        total = chunk.rows.new_zeros(len(weights))
        for batch in chunk.batches():
            a = batch.active
            if isinstance(chunk.kernel, LinearKernel):
                loss, own_slopes = in_one_pass(
                    chunk.kernel, chunk.rows[:a], batch, head, own[:a], prior[:a], slopes[:a]
                )
            else:
                loss, own_slopes = in_two_passes(chunk, batch, head, own[:a], prior[:a], slopes[:a])
            total[:a] += loss
            for term in terms:
                term.add(slopes[:a], weights[:a])
                term.add(own_slopes, own[:a])
            step_generic.step(weights[:a], slopes[:a])
            step_personal.step(own[:a], own_slopes)
        personal[chunk.place] = own
        return chunk.per_step(total)

    trained, loss = train_chunks(shard, ids, rows, settings, shared["round"], work, counters)
    deployed = trained.clone()
    deployed[:, head.columns] += personal
    return Trained(trained, loss, personal=deployed, keep={"personal_head": personal})
