"""The curves of clients' models on their own test samples: asked once, at the end of a run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkin.local.shard import Shard
from fedkin.local.training import slabs
from fedkin.task.curves import BINS, FALSE_POSITIVES, NO_VALUE, calibration_points, roc_points
from fedkin.task.task import Task


def no_curves(clients: int) -> dict[str, Tensor]:
    """The arrays "roc" (k, 22) and "calibration" (k, 3, 10) of clients that have nothing to tell."""
    return {
        "roc": torch.full((clients, len(FALSE_POSITIVES) + 1), NO_VALUE, dtype=torch.float64),
        "calibration": torch.zeros((clients, 3, BINS), dtype=torch.float64),
    }


def points_of(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The arrays "roc" (22,) and "calibration" (3, 10) of one client's outputs (n, C)."""
    chances = task.linked(outputs.double()).cpu().numpy()
    true = targets.cpu().numpy() if task.one_label else targets.reshape(outputs.shape).cpu().numpy()
    found = {"roc": roc_points(chances, true), "calibration": calibration_points(chances, true)}
    return {name: torch.from_numpy(points) for name, points in found.items()}


def row_curves(shard: Shard, ids: np.ndarray, rows: Tensor) -> dict[str, Tensor]:
    """The curves of each client's row (k, B); none where targets are numbers."""
    if shard.task.numeric:
        return {}
    told, samples = no_curves(len(ids)), shard.test

    def work(place: int) -> None:
        first, last = samples.offsets[ids[place]], samples.offsets[ids[place] + 1]
        if first == last:
            return
        index, row = torch.arange(int(first), int(last))[None], rows[place : place + 1]
        with shard.kernel() as kernel, torch.no_grad():
            outputs = torch.cat([kernel.outputs(row, samples.inputs(some)) for some in slabs(index, samples)], 1)[0]
        if not bool(torch.isfinite(outputs.sum())):
            return
        for name, points in points_of(shard.task, outputs, samples.y[index[0]]).items():
            told[name][place] = points

    shard.each(work, list(range(len(ids))))
    return told
