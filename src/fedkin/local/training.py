"""Local training and evaluation of a shard's clients."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.local.batches import count_steps, plan_batches
from fedkin.local.losses import metrics
from fedkin.local.sgd import Sgd, descend
from fedkin.local.shard import Samples, Shard

Part = Literal["train", "validation", "test"]


def train(
    shard: Shard,
    ids: np.ndarray,
    rows: Tensor,
    settings: Sgd,
    round: int,
    mu: float = 0.0,
    anchor: Tensor | None = None,
    shift: Tensor | None = None,
    counters: Tensor | None = None,
    purpose: str = "batches",
) -> tuple[Tensor, Tensor]:
    """Train clients `ids` from `rows` (k, B) with `descend`; return the trained rows (k, B) and mean losses (k,).

    Batches depend on (seed, purpose, round, client name) only. `counters` (k, C) are updated in place.
    """
    rows = rows.clone(memory_format=torch.contiguous_format)
    losses = rows.new_zeros(len(rows))
    words = shard.streams.words(purpose, round, shard.keys[ids])
    sizes = shard.train.sizes[ids]
    steps = count_steps(sizes, settings.batch_size, settings.epochs, settings.steps)
    rate = settings.rate(round)

    def work(chosen: np.ndarray) -> None:
        pick = torch.from_numpy(chosen)
        plan = plan_batches(
            words[chosen],
            sizes[chosen],
            shard.train.offsets[ids[chosen]],
            settings.batch_size,
            settings.epochs,
            settings.steps,
            rows.dtype,
        )
        mine = rows[pick]
        own_counters = None if counters is None else counters[pick]
        with shard.kernel() as kernel, seeded(shard, words[chosen[0]]):
            losses[pick] = descend(
                kernel,
                mine,
                (shard.train.x, shard.train.y),
                plan,
                settings,
                rate,
                mu,
                None if anchor is None else anchor[pick],
                None if shift is None else shift[pick],
                own_counters,
            )
        rows[pick] = mine
        if counters is not None and own_counters is not None:
            counters[pick] = own_counters

    with shard.kernel() as kernel:
        size = kernel.chunk
    shard.each(work, shard.chunks(ids, steps, size))
    return rows, losses


class seeded:
    """Models that draw random numbers take them from the client's own stream; the global state is put back."""

    def __init__(self, shard: Shard, word: np.uint64) -> None:
        self.fork = torch.random.fork_rng(devices=[], enabled=shard.choice.stochastic)
        self.seed = int(word) >> 1 if shard.choice.stochastic else None

    def __enter__(self) -> None:
        self.fork.__enter__()
        if self.seed is not None:
            torch.manual_seed(self.seed)

    def __exit__(self, *problem: object) -> None:
        self.fork.__exit__(*problem)  # type: ignore[arg-type]


def evaluate(shard: Shard, ids: np.ndarray, rows: Tensor, part: Part, limit: int = 2**22) -> dict[str, Tensor]:
    """Mean loss and headline metric of each client's model on its own samples.

    Returns {"loss": (k,), "accuracy" or "mse": (k,), "count": (k,)}; a client without samples has zeros and count 0.
    """
    samples: Samples = getattr(shard, part)
    sizes = samples.sizes[ids]
    names = ("loss", shard.task.metric)
    answer = {name: torch.zeros(len(ids), dtype=torch.float64) for name in names}

    def work(chosen: np.ndarray) -> None:
        longest = int(sizes[chosen].max())
        if longest == 0:
            return
        pick = torch.from_numpy(chosen)
        place = np.minimum(np.arange(longest)[None, :], np.maximum(sizes[chosen] - 1, 0)[:, None])
        index = torch.from_numpy(samples.offsets[ids[chosen]][:, None] + place)
        real = torch.from_numpy(np.arange(longest)[None, :] < sizes[chosen][:, None])
        with shard.kernel() as kernel, torch.no_grad():
            x = samples.x.index_select(0, index.reshape(-1)).view(*index.shape, *samples.x.shape[1:])
            outputs = kernel.outputs(rows[pick], x)
        values = metrics(shard.task.kind, outputs.flatten(0, 1), samples.y[index].flatten(0, 1))
        for name, value in values.items():
            sums = (value.double().view(real.shape) * real).sum(dim=1)
            answer[name][pick] = sums / torch.from_numpy(np.maximum(sizes[chosen], 1))

    with shard.kernel() as kernel:
        per_client = max(1, int(sizes.max(initial=1)) * max(1, samples.x[0].numel() if len(samples.x) else 1))
        size = max(1, min(kernel.chunk, limit // per_client))
    if len(samples.x):
        shard.each(work, shard.chunks(ids, sizes, size))
    return {**answer, "count": torch.from_numpy(sizes.copy())}
