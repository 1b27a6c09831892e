"""Global: one model trained on everybody's samples in one place. Not federated; the yardstick of centralised training.

(`global` is a keyword of Python: get this method as `fedkin.algorithms.Global` or `algorithms.get("global")`.)
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithm import Algorithm, LocalWork, Setting, State
from fedkin.clients import Replies
from fedkin.errors import FedkinError
from fedkin.local.batches import Plan, plan_batches
from fedkin.local.noise import Noise
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, Trained, training_task
from fedkin.local.training import Chunk, Moments, seeded


class Global(Algorithm):
    """SGD on the union of the training sets: w ← SGD(w; ∪_k D_k), mini-batches drawn from all samples alike.

    Exactly central SGD, batch norm included, and therefore only possible where one process holds all samples: engines
    that keep clients apart are refused, and no traffic is billed. Under partial participation a round's union is that of
    its cohort. Every client is tested with the common model; the sample-weighted mean over clients is its test on the
    union.
    """

    name: ClassVar[str] = "global"
    title: ClassVar[str] = "Global"
    couples: ClassVar[bool] = False

    def check(self, setting: Setting) -> None:
        if setting.home:
            raise FedkinError(
                "global trains one model on all samples, so that nothing can be private; leave private out"
            )

    def local(self, state: State, ids: np.ndarray, setting: Setting) -> LocalWork:
        return LocalWork(f"{__name__}:global", shared={"pooled": len(ids)})

    def train(self, *args: Any, **options: Any) -> Replies:
        return super().train(*args, **{**options, "bill": False})

    def couple(self, state: State, replies: Replies, setting: Setting) -> State:
        if "influence" in state.arrays:
            shares = setting.sizes[replies.ids] / setting.sizes[replies.ids].sum()
            influence = state.arrays["influence"].clone()
            influence[:, replies.ids] += torch.as_tensor(shares) * replies["moved"][0]
            state = state.with_arrays(influence=influence)
        return state.with_arrays(rows=replies["rows"][:1].expand(len(setting), -1))


@training_task("global")
def pooled_training(shard: Shard, request: Request, rows: Tensor, counters: Tensor) -> Trained:
    """One model on the samples of all asked clients; everyone gets it."""
    ids, shared = request.ids, request.shared
    if len(ids) != shared["pooled"]:
        raise FedkinError("global pools the samples of all clients in one process; run it with engine='in_process'")
    settings = Sgd(**shared["sgd"])
    plan = pooled_plan(shard, ids, settings, shared["round"], rows.dtype)
    row, count, losses = rows[:1].clone(), counters[:1], rows.new_zeros(1)

    rate, first = settings.rate(shared["round"]), np.zeros(1, dtype=np.int64)
    moments: dict[str, Tensor] = {}
    kept = Moments(shard, ids, "pool") if settings.moments == "keep" else None
    word = np.array([shard.streams.integer("pool", shared["round"])], dtype=np.uint64)

    def work(_: None) -> None:
        with shard.kernel() as kernel, seeded(shard, word[0]):
            kernel.noise = Noise(word) if shard.choice.dropout else None
            remembered = None if kept is None else kept.read
            chunk = Chunk(shard, kernel, settings, rate, first, row, count, word, lambda purpose: plan, remembered)
            losses[:] = chunk.descend()
            kernel.noise = None
            if kept is not None:
                moments.update(chunk.rules[""].state)

    shard.each(work, [None])
    if kept is not None:
        for moment, value in moments.items():
            shard.moments[kept.key("", moment)] = value.expand(len(ids), *value.shape[1:])
    counters[:] = count
    return Trained(row.expand(len(ids), -1), losses.expand(len(ids)))


def pooled_plan(shard: Shard, ids: np.ndarray, settings: Sgd, round: int, dtype: torch.dtype) -> Plan:
    """The batches of one learner that owns all samples of `ids`, taken in the order of client names."""
    order = sorted(ids, key=lambda k: shard.names[k])
    samples = np.concatenate([np.arange(*shard.train.offsets[k : k + 2]) for k in order])
    word = np.array([shard.streams.integer("pool", round)], dtype=np.uint64)
    how = settings.batch_size, settings.epochs, settings.steps, dtype
    plan = plan_batches(word, np.array([len(samples)]), np.zeros(1, dtype=np.int64), *how)
    changes = shard.changes("pool", round, word)
    return Plan(torch.as_tensor(samples)[plan.index], plan.weight, plan.steps, changes)
