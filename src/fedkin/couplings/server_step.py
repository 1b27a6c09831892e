"""The server's own optimiser: the mean update of a round is taken as a gradient (Reddi et al., 2021).

With Δ = mean of the trained models − the model they started from, m and v the server's moments (starting at 0), η its rate:

    sgd       m ← β·m + Δ,                 w ← w + η·m                         (β = 0, η = 1: FedAvg; else FedAvgM)
    adagrad   v ← v + Δ²
    adam      v ← β₂v + (1 − β₂)Δ²
    yogi      v ← v − (1 − β₂)Δ²·sign(v − Δ²)
              m ← β·m + (1 − β)Δ,          w ← w + η·m / (√v + τ)              (these three; β₂ = 0.99, τ = 0.001)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

ServerOptimiser = Literal["sgd", "adam", "yogi", "adagrad"]
BETA, TAU = 0.99, 1e-3


def server_step(
    how: ServerOptimiser, change: Tensor, mean: Tensor, square: Tensor, rate: float, momentum: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The way (P,) the server goes for a mean update Δ (P,), and its moments m and v after it.

    >>> zero = torch.zeros(1)
    >>> server_step("sgd", torch.ones(1), zero, zero, 1.0, 0.0)[0]
    tensor([1.])
    """
    if how == "sgd":
        mean = momentum * mean + change
        return rate * mean, mean, square
    power = change.square()
    if how == "adagrad":
        square = square + power
    elif how == "adam":
        square = BETA * square + (1 - BETA) * power
    else:
        square = square - (1 - BETA) * power * torch.sign(square - power)
    mean = momentum * mean + (1 - momentum) * change
    return rate * mean / (square.sqrt() + TAU), mean, square
