"""Stacked gradients of fully connected networks whose loss also looks at the features of one layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedkin.local.batches import Batch
from fedkin.local.kernels.linear import LinearKernel, chain_of
from fedkin.local.noise import Noise

Penalty = Callable[..., Tensor]
"""A penalty of features (…, n, d) and what else it needs of each sample, (…, n, …): one number each, or one for all, (…, 1)."""


def layers_up_to(module: nn.Module, layer: str) -> int | None:
    """How many linear layers of a chain lie in or before `layer`, whose output the next of them gets as it is; else None."""
    names = [(name, type(part)) for name, part in chain_of("", module)]
    inside = [place for place, (name, _) in enumerate(names) if f"{name}.".startswith(f"{layer}.")]
    if not inside or inside[-1] + 1 == len(names) or names[inside[-1] + 1][1] is not nn.Linear:
        return None
    return sum(kind is nn.Linear for _, kind in names[: inside[-1] + 1])


class TappedKernel:
    """A linear kernel for ℓ + strength·penalty(h): its outputs come with the features h, (k, n, outputs + d).

    With the features a_l going into layer l + 1, δ_l = (W_{l+1}ᵀ δ_{l+1} + ∂penalty/∂a_l) ∘ σ′: the chain of
    `fedkin.local.kernels.chain` with one more summand, which autograd finds from the features alone.
    """

    name = "linear"

    def __init__(self, kernel: LinearKernel, at: int, strength: float, penalty: Penalty) -> None:
        self.kernel, self.at, self.strength, self.penalty = kernel, at, strength, penalty
        self.layout, self.chunk = kernel.layout, kernel.chunk
        self.noise: Noise | None = None

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs + d)."""
        went = self.kernel.ahead(rows, x, x.new_empty(0))
        return torch.cat([went.outputs, went.a[self.at]], dim=1).transpose(1, 2)

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write the gradient of Σ_i weight_ki (ℓ_ki + strength·penalty_ki) into `out` (k, P); return the losses (k,)."""
        x, y, weight, more = batch
        went = self.kernel.ahead(rows, x, weight)
        loss, delta = self.kernel.output_gradient(went.outputs, y, weight)
        with torch.enable_grad():
            features = went.a[self.at].transpose(1, 2).detach().requires_grad_()
            penalty = (weight * self.strength * self.penalty(features, *more)).sum(dim=1)
            (slope,) = torch.autograd.grad(penalty.sum(), features)
        self.kernel.back(went, delta, out, self.at, slope.transpose(1, 2))
        return loss + penalty.detach()
