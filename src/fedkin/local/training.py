"""Local training and evaluation of a shard's clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedkin.local.batches import Batch, Plan, count_steps, plan_batches
from fedkin.local.forecasts import forecast_errors, forecast_names
from fedkin.local.kernels import Kernel
from fedkin.local.losses import metrics
from fedkin.local.sgd import Descent, Sgd, descend
from fedkin.local.shard import Samples, Shard

Part = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Chunk:
    """Some of the asked clients, who take their steps together; those with more steps come first."""

    shard: Shard
    kernel: Kernel
    settings: Sgd
    rate: float
    """γ of this round."""
    place: np.ndarray
    """Their places 0…k−1 among the clients asked, to pick from (and write to) tensors of the method's own."""
    rows: Tensor
    """Their rows (k, B), trained in place."""
    counters: Tensor | None
    words: np.ndarray
    """One random word per client, for random numbers of the method's own."""
    plan: Callable[[str], Plan]
    """The plan of batches drawn for a purpose."""

    @property
    def weights(self) -> Tensor:
        """The parameters among `rows`, (k, P)."""
        return self.rows[:, : self.kernel.layout.n_parameters]

    def batches(self, purpose: str = "batches") -> Iterator[Batch]:
        """The batches of every step. Another purpose gives independent batches, as many."""
        return self.plan(purpose).batches(self.shard.train.x, self.shard.train.y)

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write ∇f at `rows` (a, B) into `out` (a, P), weight decay included; return the losses (a,).

        Running statistics in the buffer columns of `rows`, and `counters`, move on as in any training step.
        """
        loss = self.kernel.gradient(rows, batch.x, batch.y, batch.weight, out, counters)
        if self.settings.weight_decay:
            out.add_(rows[:, : out.shape[1]], alpha=self.settings.weight_decay)
        return loss

    def descent(self) -> Descent:
        """The step rule of the settings, with its own velocity."""
        return Descent(self.settings, self.rate, self.weights)

    def per_step(self, total: Tensor) -> Tensor:
        """Sums over steps as means over each client's own number of steps, (k,)."""
        steps = self.plan("batches").steps
        return total / torch.from_numpy(steps).clamp(min=1).to(total.dtype)


def train_chunks(
    shard: Shard,
    ids: np.ndarray,
    rows: Tensor,
    settings: Sgd,
    round: int,
    work: Callable[[Chunk], Tensor],
    counters: Tensor | None = None,
    purpose: str = "batches",
) -> tuple[Tensor, Tensor]:
    """Train clients `ids` from `rows` (k, B), chunk by chunk, by `work`, which moves a chunk's rows in place.

    Returns the trained rows (k, B) and what `work` returns for each client, its mean training loss (k,).
    Batches depend on (seed, purpose, round, client name) only. `counters` (k, C) are updated in place.
    """
    rows = rows.clone(memory_format=torch.contiguous_format)
    losses = rows.new_zeros(len(rows))
    keys, sizes, offsets = shard.keys[ids], shard.train.sizes[ids], shard.train.offsets[ids]
    words = shard.streams.words(purpose, round, keys)
    steps = count_steps(sizes, settings.batch_size, settings.epochs, settings.steps)

    def do(place: np.ndarray) -> None:
        @cache
        def plan(why: str) -> Plan:
            drawn = words if why == "batches" else shard.streams.words(f"{purpose} {why}", round, keys)
            how = settings.batch_size, settings.epochs, settings.steps, rows.dtype
            return plan_batches(drawn[place], sizes[place], offsets[place], *how)

        pick = torch.from_numpy(place)
        own_counters = None if counters is None else counters[pick]
        with shard.kernel() as kernel, seeded(shard, words[place[0]]):
            chunk = Chunk(
                shard, kernel, settings, settings.rate(round), place, rows[pick], own_counters, words[place], plan
            )
            losses[pick] = work(chunk)
        rows[pick] = chunk.rows
        if counters is not None and own_counters is not None:
            counters[pick] = own_counters

    with shard.kernel() as kernel:
        size = kernel.chunk
    shard.each(do, shard.chunks(ids, steps, size))
    return rows, losses


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
    """Train clients `ids` from `rows` (k, B) with `descend`; return the trained rows (k, B) and mean losses (k,)."""

    def work(chunk: Chunk) -> Tensor:
        return descend(
            chunk.kernel,
            chunk.rows,
            (shard.train.x, shard.train.y),
            chunk.plan("batches"),
            settings,
            chunk.rate,
            mu,
            None if anchor is None else anchor[chunk.place],
            None if shift is None else shift[chunk.place],
            chunk.counters,
        )

    return train_chunks(shard, ids, rows, settings, round, work, counters, purpose)


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

    Returns {"loss": (k,), "accuracy" or "mse": (k,), "count": (k,)}, and for forecasts what `forecast_errors` says; a
    client without samples has zeros and count 0.
    """
    samples: Samples = getattr(shard, part)
    sizes, forecast = samples.sizes[ids], shard.task.forecast
    names = ("loss", shard.task.metric, *forecast_names(shard.task))
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
        targets = samples.y[index]
        for name, value in metrics(shard.task.kind, outputs.flatten(0, 1), targets.flatten(0, 1)).items():
            sums = (value.double().view(real.shape) * real).sum(dim=1)
            answer[name][pick] = sums / torch.from_numpy(np.maximum(sizes[chosen], 1))
        for name, value in ({} if forecast is None else forecast_errors(forecast, outputs, targets, real)).items():
            answer[name][pick] = value.double()

    with shard.kernel() as kernel:
        per_client = max(1, int(sizes.max(initial=1)) * max(1, samples.x[0].numel() if len(samples.x) else 1))
        size = max(1, min(kernel.chunk, limit // per_client))
    if len(samples.x):
        shard.each(work, shard.chunks(ids, sizes, size))
    return {**answer, "count": torch.from_numpy(sizes.copy())}
