"""The curves of clients' models on their own test samples: asked once, at the end of a run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkin.local.shard import Shard
from fedkin.local.training import slabs
from fedkin.task.curves import no_curves, points_of, tells_curves


def row_curves(shard: Shard, ids: np.ndarray, rows: Tensor) -> dict[str, Tensor]:
    """The curves of each client's row (k, B); none where targets are numbers."""
    if not tells_curves(shard.task):
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
