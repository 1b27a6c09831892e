"""Stacked stochastic gradient descent: all clients of a chunk take each step together.

Client k follows v ← m·v + ∇f_k(w) + λw + μ(w − a_k) + s_k and w ← w − γ·v, with momentum m, weight decay λ, a proximal pull
μ towards its anchor a_k (the gradient of (μ/2)‖w − a_k‖², live parameters) and an optional constant shift s_k (SCAFFOLD's
control variates). The velocity v starts at zero in every round.
"""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedkin.local.batches import Plan
from fedkin.local.kernels import Kernel
from fedkin.local.kernels.linear import LinearKernel


class Sgd(BaseModel):
    """Settings of local training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    lr: float = Field(0.05, gt=0, description="learning rate γ")
    epochs: int = Field(1, ge=1, description="passes over the client's data per round")
    steps: int | None = Field(None, ge=1, description="steps per round instead of epochs")
    batch_size: int = Field(32, ge=1, description="samples per step; the last batch of an epoch may be smaller")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum")
    weight_decay: float = Field(0.0, ge=0, description="L2 coefficient λ; adds λ·w to the gradient")
    lr_decay: float = Field(1.0, gt=0, le=1, description="the rate is multiplied by this …")
    lr_decay_every: int = Field(1, ge=1, description="… every so many rounds")

    def rate(self, round: int) -> float:
        """The learning rate of round t = 1, 2, …: γ · decay^⌊(t−1)/every⌋."""
        return float(self.lr * self.lr_decay ** ((round - 1) // self.lr_decay_every))


class Descent:
    """The step of stacked clients: v ← m·v + g, w ← w − γ·v. The velocity v starts at zero."""

    def __init__(self, settings: Sgd, rate: float, like: Tensor) -> None:
        self.momentum, self.rate = settings.momentum, rate
        self.velocity = torch.zeros_like(like, memory_format=torch.contiguous_format) if settings.momentum else None

    def step(self, weights: Tensor, slopes: Tensor) -> None:
        """Move the weights (a, P) of the first a clients in place."""
        if self.velocity is not None:
            slopes = self.velocity[: len(slopes)].mul_(self.momentum).add_(slopes)
        weights.add_(slopes, alpha=-self.rate)


def descend(
    kernel: Kernel,
    rows: Tensor,
    samples: tuple[Tensor, Tensor],
    plan: Plan,
    settings: Sgd,
    rate: float,
    mu: float = 0.0,
    anchor: Tensor | None = None,
    shift: Tensor | None = None,
    counters: Tensor | None = None,
) -> Tensor:
    """Train a chunk of clients in place; return each client's mean training loss over its steps, shape (k,).

    rows (k, B), sorted so that clients with more steps come first; samples (x, y) of the shard; anchor and shift (k, P).
    """
    weights = rows[:, : kernel.layout.n_parameters]
    steps = torch.from_numpy(plan.steps).clamp(min=1).to(rows.dtype)
    if isinstance(kernel, LinearKernel) and not settings.momentum:  # all terms in one pass over the weights
        push = None if shift is None else -rate * shift
        if mu:
            pull = rate * mu * (weights if anchor is None else anchor)
            push = pull if push is None else push.add_(pull)
        shrink = 1 - rate * (settings.weight_decay + mu)
        return kernel.descend(rows, *samples, plan, rate, shrink, push) / steps
    slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
    descent = Descent(settings, rate, weights)
    total_loss = rows.new_zeros(len(rows))
    if mu and anchor is None:
        anchor = weights.clone()
    for active, x, y, weight in plan.batches(*samples):
        w, g = weights[:active], slopes[:active]
        mine = None if counters is None else counters[:active]
        total_loss[:active] += kernel.gradient(rows[:active], x, y, weight, g, mine)
        if settings.weight_decay:
            g.add_(w, alpha=settings.weight_decay)
        if mu and anchor is not None:
            g.add_(w, alpha=mu).sub_(anchor[:active], alpha=mu)
        if shift is not None:
            g.add_(shift[:active])
        descent.step(w, g)
    return total_loss / steps
