"""Distilled: a client's combination of networks taught to a single one of the original size, on the client's own inputs."""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from torch import Tensor

from fedkin.federation import Split
from fedkin.local.samples import Samples
from fedkin.local.sgd import Sgd
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, client_task
from fedkin.local.training import train_rows
from fedkin.portfolio.judged import combined_outputs

TEACH = f"{__name__}:distil"
LESSONS = 1024
"""At least so many inputs: a client's own, and points between two of them."""
DRAWS = 4
"""How many labels are drawn for an input from what the combination says of it."""
DISTILLING = 2_000_000
"""The batches are drawn as those of this round: never those of training or fine-tuning."""


@client_task("distil")
def distil_task(shard: Shard, request: Request) -> dict[str, Tensor]:
    """One network instead of a combination: per_client "models" (k, P, B), "weights", "temperatures" (k, P); shared "sgd".

    Inputs x are the client's training inputs and, unless they are tokens, points u·x_a + (1 − u)·x_b between two of them, u
    uniform. Targets are what the combination says: numbers, or labels drawn from its probabilities, evenly spread over the
    draws. The student begins where it is nearer to the combination, at the heaviest network or at the weighted mean of all,
    and takes the steps of "sgd". Returns "rows" (k, B) and "apart" (k,), its mean loss against the combination on the inputs
    less the combination's own.
    """
    models, weights = request.per_client["models"].to(shard.spec.dtype), request.per_client["weights"]
    inputs, said = _taught(shard, request)
    heaviest = models[torch.arange(len(models)), weights.argmax(dim=1)]
    mean = torch.einsum("kp,kpb->kb", weights.to(models.dtype), models)
    far = [_apart(shard, rows, inputs, said) for rows in (heaviest, mean)]
    start = torch.where((far[1] < far[0])[:, None], mean, heaviest)
    student, settings = copy(shard), Sgd(**request.shared["sgd"])
    student.train = _lessons(shard, request.ids, inputs, said)
    rows, _ = train_rows(student, request.ids, start, settings, DISTILLING, purpose="distilling")
    after = _apart(shard, rows, inputs, said)
    rows = torch.where((after <= torch.minimum(*far))[:, None], rows, start)
    return {"rows": rows, "apart": torch.minimum(after, torch.minimum(*far))}


def _generator(shard: Shard, k: int, why: str) -> np.random.Generator:
    return shard.streams.generator(why, shard.names[k])


def _taught(shard: Shard, request: Request) -> tuple[list[Tensor], list[Tensor]]:
    """Per client the inputs (n, …) of the lessons, and what its combination says of them: log p (n, C), or numbers."""
    inputs: list[Tensor] = [torch.zeros(0)] * len(request.ids)
    said: list[Tensor] = [torch.zeros(0)] * len(request.ids)

    def work(place: int) -> None:
        k = int(request.ids[place])
        x = shard.train.of(k)[0]
        more = LESSONS - len(x)
        if more > 0 and x.is_floating_point():
            draw = _generator(shard, k, "points between")
            a, b = (torch.from_numpy(draw.integers(len(x), size=more)) for _ in range(2))
            u = torch.from_numpy(draw.random(more)).to(x.dtype).view(-1, *[1] * (x.ndim - 1))
            x = torch.cat([x, u * x[a] + (1 - u) * x[b]])
        inputs[place] = x
        said[place] = combined_outputs(shard, request, place, x)

    shard.each(work, list(range(len(request.ids))))
    return inputs, said


def _lessons(shard: Shard, ids: np.ndarray, inputs: list[Tensor], said: list[Tensor]) -> Samples:
    """What the students learn from; clients that are not asked have nothing."""
    sizes = np.zeros(len(shard), dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    x, y = [], []
    for place in order:
        k = int(ids[place])
        if shard.task.mixes_chances:
            labels = _drawn(said[place].exp().numpy(), _generator(shard, k, "labels of lessons"))
            x.append(inputs[place].repeat(DRAWS, *[1] * (inputs[place].ndim - 1)))
            y.append(torch.from_numpy(labels))
        else:
            x.append(inputs[place])
            y.append(said[place].to(shard.train.y.dtype).view(-1, *shard.train.y.shape[1:]))
        sizes[k] = len(x[-1])
    made = Split(torch.cat(x).cpu().numpy(), torch.cat(y).cpu().numpy(), np.concatenate([[0], np.cumsum(sizes)]))
    return Samples(made, shard.spec.dtype, shard.task.tokens, shard.train.device)


def _drawn(p: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """DRAWS labels for each of n inputs from p (n, C), at evenly spread points of the distribution, (DRAWS·n,)."""
    reached = np.cumsum(p, axis=1) / p.sum(axis=1, keepdims=True)
    points = (np.arange(DRAWS)[:, None] + draw.random(len(p))[None]) / DRAWS
    return np.asarray((points[:, :, None] > reached[None, :, :-1]).sum(axis=2).reshape(-1), dtype=np.int64)


def _apart(shard: Shard, rows: Tensor, inputs: list[Tensor], said: list[Tensor]) -> Tensor:
    """How far each row (k, B) is from the combination on the inputs: KL divergence, or mean squared difference, (k,)."""
    found = torch.zeros(len(rows), dtype=torch.float64)

    def work(place: int) -> None:
        with shard.kernel() as kernel, torch.no_grad():
            out = kernel.outputs(rows[place : place + 1], inputs[place][None])[0].double()
        if shard.task.mixes_chances:
            apart = (said[place].exp() * (said[place] - torch.log_softmax(out, dim=-1))).sum(dim=-1)
        else:
            apart = (said[place].reshape(len(out), -1) - out.reshape(len(out), -1)).square().mean(dim=1)
        found[place] = apart.mean().nan_to_num(nan=torch.inf)

    shard.each(work, list(range(len(rows))))
    return found
