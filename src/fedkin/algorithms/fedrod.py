"""FedRoD: one body, two heads: a generic one trained as if classes were balanced, and a personal one beside it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms._linear_head import linear_head
from fedkin.algorithms.fedavg import FedAvg
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, train_chunks


class FedRoD(FedAvg):
    """FedAvg on a class-balanced loss; each client adds the logits of a personal head H_k fitted to its own classes.

        generic:   (body, G) ← (body, G) − γ ∇ ℓ(G z + log π_k, y)     π_k the client's class counts (balanced softmax)
        personal:  H_k ← H_k − γ ∇_H ℓ(G z + H z, y)                    body and G as they are: no gradient reaches them
        server:    body, G averaged as in FedAvg;   a client deploys  x ↦ (G + H_k) z(x)

    Both move at once, on the same batches. Heads are linear, so that the deployed model is the network with head G + H_k.
    H_k starts at 0, lives with the client and moves only in rounds it takes part in. *Pre* is the generic model, *post*
    the personal one. `balanced=False` trains the generic model as FedAvg does; so does a regression, which has no classes.
    A class that a client has not enters log π_k as 10⁻⁹ samples. A round costs two gradients per step. (The paper's second
    form makes H_k by a hypernetwork; it is not here.)

    PFLlib starts H_k as a copy of G, which counts G twice, and takes log 0 for missing classes.

    Reference: Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, 2022.
    """

    name: ClassVar[str] = "fedrod"
    title: ClassVar[str] = "FedRoD"
    deploys: ClassVar[Deploys] = "trained"

    balanced: bool = Field(True, description="train the generic model with the balanced softmax")

    def check(self, setting: Setting) -> None:
        linear_head(setting.model, self.name)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:fedrod", shared={"balanced": self.balanced})


def log_counts(shard: Shard, ids: np.ndarray) -> Tensor:
    """log π_k: the logarithm of each client's training samples per class, (k, C); zeros for a regression."""
    if not shard.task.one_label:
        return torch.zeros((len(ids), shard.task.outputs), dtype=shard.spec.dtype)
    counts = [torch.bincount(shard.train.targets(int(k)), minlength=shard.task.outputs) for k in ids]
    return torch.stack(counts).to(shard.spec.dtype).clamp(min=1e-9).log()


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
        n, terms = weights.shape[1], settings.terms()
        step_generic, step_personal = chunk.rule(), chunk.rule("personal", own)
        slopes, spare = torch.empty_like(weights), torch.empty_like(weights)
        total = chunk.rows.new_zeros(len(weights))
        for a, x, y, share in chunk.batches():
            same_dropout = chunk.replay()
            both = chunk.rows[:a].clone()
            both[:, head.columns] += own[:a]
            chunk.kernel.gradient(both, x, y, share, spare[:a])
            same_dropout()
            shifted = chunk.rows[:a].clone()
            shifted[:, head.biases] += prior[:a]
            counted = None if chunk.counters is None else chunk.counters[:a]
            total[:a] += chunk.kernel.gradient(shifted, x, y, share, slopes[:a], counted)
            chunk.rows[:a, n:] = shifted[:, n:]
            own_slopes = spare[:a, head.columns].contiguous()
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
