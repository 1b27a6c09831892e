"""The deployed combinations on the clients' test samples: asked once, when everything has been chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.local.transfer import outputs_of
from fedkin.task.judging import valued
from fedkin.task.losses import loss_of

JUDGE = f"{__name__}:judge"


@client_task("judge")
def judge_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Test metrics of combined models: per_client "models" (k, P, B), "weights" and "temperatures" (k, P); weight 0: none."""
    classes = shard.task.mixes_chances
    models = request.per_client["models"].to(shard.spec.dtype)
    found: dict[str, Tensor] = {}
    sizes = shard.test.sizes[request.ids]

    def work(place: int) -> None:
        if not sizes[place]:
            return
        weights = request.per_client["weights"][place]
        used = weights > 0
        outputs, y = outputs_of(shard, shard.test, int(request.ids[place]), models[place][used])
        shape = (-1, *[1] * (outputs.dim() - 1))
        if classes:
            outputs = torch.softmax(
                outputs.double() / request.per_client["temperatures"][place][used].view(shape), dim=-1
            )
        together = (outputs.double() * weights[used].view(shape)).sum(dim=0)
        found_outputs = together.clamp(min=1e-300).log() if classes else together
        told = {"loss": float(loss_of(shard.task)(found_outputs, y).double().mean())}
        told |= valued(shard.task, shard.task.judge(found_outputs, y), len(y))
        if shard.task.classes:
            told["distinct_count"] = len(torch.unique(found_outputs.argmax(dim=1)))
        for name, value in told.items():
            found.setdefault(name, torch.zeros(len(sizes), dtype=torch.float64))[place] = value

    shard.each(work, list(range(len(sizes))))
    return {**{f"test_{name}": value for name, value in found.items()}, "test_count": torch.from_numpy(sizes.copy())}
