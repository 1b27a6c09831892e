"""The deployed combinations on the clients' test samples: asked once, when everything has been chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.task.curves import ASK_CURVES, no_curves, points_of, tells_curves
from fedkin.task.judging import valued
from fedkin.task.losses import loss_of

JUDGE = f"{__name__}:judge"


def combined_outputs(shard: Shard, request: Request, place: int, x: Tensor) -> Tensor:
    """What the combination of the client asked at `place` says of inputs (n, …): log p (n, C), or numbers; float64.

    per_client "models" (k, P, B), "weights" and "temperatures" (k, P); weight 0: none.
    """
    weights = request.per_client["weights"][place]
    used = weights > 0
    rows = request.per_client["models"][place][used].to(shard.spec.dtype)
    with shard.kernel() as kernel, torch.no_grad():
        outputs = kernel.outputs(rows, x.expand(len(rows), *x.shape)).double()
    shape = (-1, *[1] * (outputs.dim() - 1))
    if shard.task.mixes_chances:
        outputs = torch.softmax(outputs / request.per_client["temperatures"][place][used].view(shape), dim=-1)
    together = (outputs * weights[used].view(shape)).sum(dim=0)
    return together.clamp(min=1e-300).log() if shard.task.mixes_chances else together


@client_task("judge")
def judge_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """Test metrics of combined models: per_client "models" (k, P, B), "weights" and "temperatures" (k, P); weight 0: none.

    shared "curves": their curves as well (see `local/curves.py`).
    """
    found: dict[str, Tensor] = {}
    wanted = bool(request.shared.get(ASK_CURVES)) and tells_curves(shard.task)
    curves = no_curves(len(request.ids)) if wanted else {}
    sizes = shard.test.sizes[request.ids]

    def work(place: int) -> None:
        if not sizes[place]:
            return
        x, y = shard.test.of(int(request.ids[place]))
        found_outputs = combined_outputs(shard, request, place, x)
        told = {"loss": float(loss_of(shard.task)(found_outputs, y).double().mean())}
        told |= valued(shard.task, shard.task.judge(found_outputs, y), len(y))
        if shard.task.classes:
            told["distinct_count"] = len(torch.unique(found_outputs.argmax(dim=1)))
        for name, points in points_of(shard.task, found_outputs, y).items() if curves else ():
            curves[name][place] = points
        for name, value in told.items():
            found.setdefault(name, torch.zeros(len(sizes), dtype=torch.float64))[place] = value

    shard.each(work, list(range(len(sizes))))
    numbers = {f"test_{name}": value for name, value in found.items()}
    return {**numbers, **curves, "test_count": torch.from_numpy(sizes.copy())}
