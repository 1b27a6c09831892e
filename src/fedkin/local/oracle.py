"""The plain loop: one nn.Module and one torch.optim.SGD per client, as users write it.

Every faster path must agree with it to rounding. It shares the batch plan with them and nothing else.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.local.batches import plan_batches
from fedkin.local.losses import per_sample
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard


def train_by_loop(
    shard: Shard, ids: np.ndarray, rows: Tensor, settings: Sgd, round: int, mu: float = 0.0, purpose: str = "batches"
) -> Tensor:
    """Train clients one after the other from `rows` (k, B); return the trained rows (k, B)."""
    words = shard.streams.words(purpose, round, shard.keys[ids])
    trained = []
    for position, k in enumerate(ids):
        plan = plan_batches(
            words[position : position + 1],
            shard.train.sizes[k : k + 1],
            shard.train.offsets[k : k + 1],
            settings.batch_size,
            settings.epochs,
            settings.steps,
            rows.dtype,
        )
        module = shard.spec.module(rows[position]).train()
        start = [p.detach().clone() for p in module.parameters()]
        optimiser = torch.optim.SGD(
            module.parameters(),
            lr=settings.rate(round),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        for step in range(int(plan.steps[0])):
            chosen = plan.index[0, step][plan.weight[0, step] > 0]
            x, y = shard.train.x[chosen], shard.train.y[chosen]
            for layer in module.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.train(len(x) > 1)
            loss = per_sample(shard.task.kind, module(x), y).mean()
            if mu:
                pull = sum(((p - a) ** 2).sum() for p, a in zip(module.parameters(), start))
                loss = loss + mu / 2 * pull
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        trained.append(shard.spec.layout.pack(module, rows.dtype))
    return torch.stack(trained)
