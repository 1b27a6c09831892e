"""The two losses, per sample, and the metrics that go with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

from fedkin.task import Kind

Loss = Callable[..., Tensor]
"""(outputs of n samples, their targets, more per-sample arrays of the method's own) → the loss of each sample, (n,)."""


def loss_of(kind: Kind) -> Loss:
    """The loss of a kind of task."""
    return partial(per_sample, kind)


def per_sample(kind: Kind, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each sample, shape (n,).

    Classification: cross entropy of the logits (n, C) against labels (n,) or distributions over classes (n, C).
    Regression: squared error (n, …) against (n, …), averaged over the entries of one target.
    """
    if kind == "classification":
        return functional.cross_entropy(outputs, targets, reduction="none")
    return (outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)).square().mean(dim=1)


def metrics(kind: Kind, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Sums over the samples of one client (last axis of the loss): the loss and the headline metric, each per sample.

    outputs (n, C) or (n, …); returns {"loss": (n,), "accuracy" or "mse": (n,)}.
    """
    loss = per_sample(kind, outputs, targets)
    if kind == "classification":
        return {"loss": loss, "accuracy": (outputs.argmax(dim=1) == targets).to(loss.dtype)}
    return {"loss": loss, "mse": loss}
