"""The curves of clients' models on their own test samples: asked once, at the end of a run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkin.local.shard import Shard
from fedkin.local.training import LookAtOutputs, on_own_samples
from fedkin.task import Task
from fedkin.task.curves import no_curves, points_of, tells_curves


def row_curves(shard: Shard, ids: np.ndarray, rows: Tensor) -> dict[str, Tensor]:
    """The curves of each client's row (k, B); none where targets are numbers."""
    told, look = curves_to_tell(shard.task, len(ids))
    if told:
        on_own_samples(shard, ids, rows, "test", look)
    return told


def curves_to_tell(task: Task, clients: int) -> tuple[dict[str, Tensor], LookAtOutputs]:
    """The curves of so many clients, empty at first, and who fills them in while the clients' test samples go by."""
    told = no_curves(clients) if tells_curves(task) else {}

    def look(chosen: np.ndarray, outputs: Tensor, targets: Tensor, real: Tensor) -> None:
        for place, own, true, n in zip(chosen, outputs, targets, real.sum(dim=1).tolist()):
            if told and n and bool(torch.isfinite(own[:n].sum())):
                for name, points in points_of(task, own[:n], true[:n]).items():
                    told[name][place] = points

    return told, look
