"""The plain loop: one nn.Module and one optimiser of torch.optim per client, as users write it.

Every faster path must agree with it to rounding. It shares the batch plan with them and nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.local.batches import plan_batches
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.task.losses import loss_of


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
        optimiser = torchs(settings, round, module)
        for step in range(int(plan.steps[0])):
            chosen = plan.index[0, step][plan.weight[0, step] > 0]
            x, y = shard.train.inputs(chosen), shard.train.y[chosen]
            for layer in module.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.train(len(x) > 1)
            loss = loss_of(shard.task)(module(x), y).mean()
            if mu:
                pull = sum(((p - a) ** 2).sum() for p, a in zip(module.parameters(), start))
                loss = loss + mu / 2 * pull
            optimiser.zero_grad()
            loss.backward()
            if settings.clip:
                nn.utils.clip_grad_norm_(module.parameters(), settings.clip)
            optimiser.step()
        trained.append(shard.spec.layout.pack(module, rows.dtype))
    return torch.stack(trained)


def torchs(settings: Sgd, round: int, module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of torch that the settings stand for."""
    how: dict[str, Any] = {"lr": settings.rate(round), "weight_decay": settings.weight_decay}
    if settings.optimiser in ("sgd", "rmsprop"):
        how["momentum"] = settings.momentum
    kind: Any = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
    }[settings.optimiser]
    made: torch.optim.Optimizer = kind(module.parameters(), **how)
    return made
