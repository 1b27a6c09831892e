"""How well do other clients' models do here? Losses of given rows on a client's own samples, never on test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedkin.local.samples import Samples
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task, composed, staying
from fedkin.task.losses import loss_of

TRANSFER = f"{__name__}:transfer"
CAP = 6.0
"""Cross entropy of one sample counts at most this much: one absurd prediction says no more than a wrong one."""


def outputs_of(shard: Shard, samples: Samples, k: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (M, n, …) of M rows on the samples of client k, and the targets (n, …)."""
    x, y = samples.of(k)
    with shard.kernel() as kernel, torch.no_grad():
        return kernel.outputs(rows, x.expand(len(rows), *x.shape)), y


def losses_of(shard: Shard, samples: Samples, k: int, rows: Tensor) -> Tensor:
    """The loss of each of M rows on each of the n samples of client k, (M, n), float64."""
    outputs, y = outputs_of(shard, samples, k, rows)
    repeated = y.expand(len(rows), *y.shape).flatten(0, 1)
    return capped_loss(shard)(outputs.flatten(0, 1), repeated).double().view(len(rows), len(y))


def capped_loss(shard: Shard) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of every sample, (n,), cross entropy at most `CAP`."""
    loss = loss_of(shard.task)
    return (lambda outputs, targets: loss(outputs, targets).clamp(max=CAP)) if shard.task.classes else loss


def held_out(shard: Shard, k: int) -> Samples:
    """Client k's validation samples; its training samples, where it has none."""
    return shard.validation if shard.validation.sizes[k] else shard.train


@client_task("transfer")
def transfer_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Transfer losses: per_client "models" (k, M, B) on the client's training samples.

    With shared "held_out" they are of its validation samples, if it has any. With shared "private", the names of tensors that stay with the client, models come without them and are tried with the
    client's own in their place.

    Returns "transfer" (k, M), the mean loss of each model, and "noise" (k,), the median standard error of the paired
    difference between a model and the best of them. A model whose loss is not finite counts as the worst.
    """
    models = tried_models(shard, request)
    transfer = torch.zeros(models.shape[:2], dtype=torch.float64)
    noise = torch.zeros(len(request.ids), dtype=torch.float64)

    def work(place: int) -> None:
        k = int(request.ids[place])
        samples = held_out(shard, k) if request.shared.get("held_out") else shard.train
        losses = losses_of(shard, samples, k, models[place])
        transfer[place], noise[place] = judged_losses(losses)

    shard.each(work, list(range(len(request.ids))))
    return {"transfer": transfer, "noise": noise}


def judged_losses(losses: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of each model, (M,), and the median standard error of its difference to the best, from (M, n)."""
    means = losses.mean(dim=1)
    worst = means[means.isfinite()].max() if means.isfinite().any() else means.new_tensor(CAP)
    transfer, noise = torch.where(means.isfinite(), means, worst), means.new_zeros(())
    best = int(transfer.argmin())
    if losses.shape[1] > 1 and len(losses) > 1:
        others = torch.tensor([m for m in range(len(losses)) if m != best and bool(means[m].isfinite())])
        if len(others):
            apart = losses[others] - losses[best]
            noise = (apart.std(dim=1) / losses.shape[1] ** 0.5).median()
    return transfer, noise


def tried_models(shard: Shard, request: Request) -> Tensor:
    """The models to try with all their columns, (k, M, B)."""
    models = request.per_client["models"].to(shard.spec.dtype)
    stays = staying(shard, request)
    if not stays:
        return models
    count = models.shape[1]
    asked = Request(np.repeat(request.ids, count), shared=request.shared)
    return composed(shard, asked, models.flatten(0, 1), stays).view(len(models), count, -1)


def in_pieces(count: int, bytes_each: int, limit: int = 2**28) -> list[np.ndarray]:
    """0…count−1 in runs that take at most `limit` bytes together."""
    size = max(1, limit // max(1, bytes_each))
    return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]
