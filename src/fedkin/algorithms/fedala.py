"""FedALA: each client starts a round between its own last model and the common one, weight by weight where that helps it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedkin.algorithm import Deploys, LocalWork, Setting, State
from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.fedper import head_of
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, train_chunks, train_rows
from fedkin.privacy.settings import Level


class FedALA(FedAvg):
    """FedAvg with adaptive local aggregation: before training, client k mixes the upper layers element by element.

        ŵ_k = v_k + (w − v_k) ∘ A_k        v_k the client's model after its last training, A_k in [0, 1]
        A_k ← clip(A_k − η ∇f_k(ŵ_k) ∘ (w − v_k), 0, 1)        on a share s of the client's batches
        v_k ← SGD(ŵ_k; D_k);   w ← Σ_{k∈S} (n_k / Σ_S n) v_k

    Layers below, and running statistics, are the common model's. A_k starts at 1 and is kept with v_k; it is learned for
    `first_passes` when the client first has a model that differs from w, and for one pass in every later round. The upper
    layers are `head`, found as in FedPer (the paper's p = 1). η = 0 or `head=[]` is FedAvg + fine-tuning.

    Published code passes over the data until the loss varies by less than 0.1, which may be never, takes a block of
    consecutive samples, and has no batch at all where a client has fewer samples than one holds.

    Reference: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, 2023.
    """

    name: ClassVar[str] = "fedala"
    title: ClassVar[str] = "FedALA"
    protects: ClassVar[tuple[Level, ...]] = ()
    deploys: ClassVar[Deploys] = "trained"

    eta: float = Field(1.0, ge=0, description="rate η of the mixing weights")
    share: float = Field(0.8, gt=0, le=1, description="share s of the batches that they are learned on")
    first_passes: int = Field(10, ge=1, description="passes over these the first time; one afterwards")
    head: tuple[str, ...] | None = Field(
        None, description="modules that are mixed by weights (default: classifier, or the last layer)"
    )

    def check(self, setting: Setting) -> None:
        head_of(setting.model.layout, self.head)

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        mixed = head_of(setting.model.layout, self.head)
        shared = {"eta": self.eta, "share": self.share, "first_passes": self.first_passes, "mixed": mixed}
        return LocalWork(f"{__name__}:fedala", shared=shared)


@training_task("fedala")
def mix_and_train(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """Learn the mixing weights, then train from the mixture."""
    ids, shared, layout = request.ids, request.shared, shard.spec.layout
    n = layout.n_parameters
    mixed = layout.mask(tuple(shared["mixed"]))[:n]
    own = shard.private("ala_model", lambda: shard.spec.initial_row(shard.streams))[ids]
    weights = shard.private("ala_weights", lambda: torch.ones(int(mixed.sum()), dtype=rows.dtype))[ids]
    times = shard.private("ala_times", lambda: torch.zeros((), dtype=torch.int64))[ids]
    passes = torch.where(times == 0, 0, torch.where(times == 1, shared["first_passes"], 1)).cpu().numpy()
    settings = Sgd(**shared["sgd"])
    per_epoch = -(-shard.train.sizes[ids] // settings.batch_size)
    limit = np.ceil(shared["share"] * per_epoch)

    def learn(chunk: Chunk) -> Tensor:
        place, start, learned = chunk.place, chunk.rows.clone(), weights[chunk.place]
        last = own[place, :n][:, mixed]
        way = start[:, :n][:, mixed] - last
        columns = mixed.nonzero()[:, 0]
        slopes = torch.empty_like(chunk.weights, memory_format=torch.contiguous_format)
        chunk.rows[:, columns] = last + way * learned
        for step, batch in enumerate(chunk.batches()):
            a = batch.active
            number, within = np.divmod(step, per_epoch[place[:a]])
            on = torch.as_tensor((number < passes[place[:a]]) & (within < limit[place[:a]]))[:, None]
            chunk.kernel.gradient(chunk.rows[:a], batch, slopes[:a])
            moved = (learned[:a] - shared["eta"] * slopes[:a, columns] * way[:a]).clamp(0, 1)
            learned[:a] = torch.where(on, moved, learned[:a])
            chunk.rows[:a, columns] = last[:a] + way[:a] * learned[:a]
        chunk.rows[:, n:] = start[:, n:]
        weights[place] = learned
        return chunk.rows.new_zeros(len(start))

    start, t = rows, shared["round"]
    if passes.any() and mixed.any() and shared["eta"]:
        look = settings.model_copy(update={"epochs": int(passes.max()), "steps": None, "moments": "reset"})
        start, _ = train_chunks(shard, ids, rows, look, t, learn, purpose="mixing")
    trained, loss = train_rows(shard, ids, start, settings, t, counters=counters)
    keep = {"ala_model": trained, "ala_weights": weights, "ala_times": times + 1}
    return Trained(trained, loss, keep=keep)
