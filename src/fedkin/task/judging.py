"""Judging many clients at once, and how a client's numbers travel."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedkin.task.losses import mse
from fedkin.task.task import Task


def per_sample(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Those of a task's metrics that are means over samples, for many clients' samples at once, each (n,)."""
    found: dict[str, Tensor] = {}
    if "accuracy" in task.metrics and task.one_label:
        found["accuracy"] = (outputs.argmax(dim=1) == targets).to(outputs.dtype)
    if "mse" in task.metrics and task.loss == "mse" and task.scale is None:
        found["mse"] = mse(outputs, targets)
    return found


def distinct(task: Task, outputs: Tensor, real: Tensor) -> Tensor | None:
    """How many different labels each client's samples are given, (k,); None where samples have no single label.

    outputs (k, n, C); real (k, n) says which samples exist, the first always does.
    """
    if not task.one_label:
        return None
    labels = outputs.argmax(dim=2)
    seen = torch.zeros((len(labels), task.outputs), dtype=torch.float64)
    return seen.scatter_(1, torch.where(real, labels, labels[:, :1]), 1.0).sum(dim=1)


def may_lack(task: Task) -> tuple[str, ...]:
    """The metrics that may have no value for a client, as AUROC has none where all test samples are of one class."""
    return tuple(name for name in task.metric_keys if name not in ("accuracy", "mse"))


def valued(task: Task, found: Mapping[str, float], n: int) -> dict[str, float]:
    """A client's metrics on n samples as they travel: one without a value is 0 with a count of 0.

    NaN would say that the client's training diverged, and set aside its model with all other numbers.
    """
    told = {name: value if math.isfinite(value) else 0.0 for name, value in found.items()}
    return told | {f"{name}_count": n if math.isfinite(found[name]) else 0 for name in may_lack(task) if name in found}
