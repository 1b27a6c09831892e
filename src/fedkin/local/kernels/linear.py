"""Stacked gradients of fully connected networks, written out by hand: one batched product per layer for all clients.

With a_0 = x, z_l = a_{l−1} W_lᵀ + b_l, a_l = σ(z_l) and δ_L = ∂loss/∂z_L:

    ∂/∂W_l = δ_lᵀ a_{l−1},   ∂/∂b_l = Σ_batch δ_l,   δ_{l−1} = (δ_l W_l) ∘ σ′(z_{l−1}).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedkin.federation import Kind
from fedkin.local.losses import output_gradient
from fedkin.models import Layout, Slot


@dataclass(frozen=True)
class Dense:
    """A linear layer and the activation that follows it."""

    weight: Slot
    bias: Slot | None
    activation: str


def dense_layers(module: nn.Module, layout: Layout) -> list[Dense] | None:
    """The layers of a network that is a plain chain of Linear, ReLU and Tanh; None for anything else."""
    slots = {slot.name: slot for slot in layout.parameters}
    found: list[Dense] = []
    pending: tuple[Slot, Slot | None] | None = None
    for name, layer in _chain("", module):
        if type(layer) is nn.Linear:
            if pending is not None:
                found.append(Dense(*pending, activation="none"))
            weight, bias = f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")
            if weight not in slots or (layer.bias is not None and bias not in slots):
                return None  # a frozen layer
            pending = (slots[weight], slots.get(bias))
        elif type(layer) in (nn.ReLU, nn.Tanh) and pending is not None:
            found.append(Dense(*pending, activation="relu" if type(layer) is nn.ReLU else "tanh"))
            pending = None
        elif type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1 and not found and not pending:
            continue
        elif type(layer) is not nn.Identity:
            return None
    if pending is None or len(slots) != sum(1 + (d.bias is not None) for d in found) + 1 + (pending[1] is not None):
        return None
    return [*found, Dense(*pending, activation="none")]


def _chain(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        for name, child in module.named_children():
            yield from _chain(f"{prefix}.{name}".lstrip("."), child)
    else:
        yield prefix, module


class LinearKernel:
    """Gradients and outputs of a stack of fully connected networks."""

    name = "linear"

    def __init__(self, layers: list[Dense], layout: Layout, kind: Kind) -> None:
        self.layers, self.layout, self.kind = layers, layout, kind
        # Enough clients to drown Python's overhead, few enough that a chunk stays in cache (measured: 25–50 are best).
        self.chunk = max(8, min(50, 2**24 // (8 * max(layout.n_parameters, 1))))

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs)."""
        return self._forward(rows, x)[-1]

    def _forward(self, rows: Tensor, x: Tensor) -> list[Tensor]:
        activations = [x.reshape(x.shape[0], x.shape[1], -1)]
        for layer in self.layers:
            weight = layer.weight.view(rows).transpose(1, 2)
            if layer.bias is None:
                z = torch.bmm(activations[-1], weight)
            else:
                z = torch.baddbmm(layer.bias.view(rows).unsqueeze(1), activations[-1], weight)
            if layer.activation == "relu":
                z.clamp_min_(0)
            elif layer.activation == "tanh":
                z.tanh_()
            activations.append(z)
        return activations

    def gradient(
        self,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        weight: Tensor,
        out: Tensor,
        counters: Tensor | None = None,
        *more: Tensor,
    ) -> Tensor:
        """Write the gradient of Σ_i weight_ki ℓ_ki into `out` (k, P); return the losses (k,)."""
        activations = self._forward(rows, x)
        loss, delta = output_gradient(self.kind, activations[-1], y, weight)
        for depth in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[depth]
            torch.bmm(delta.transpose(1, 2), activations[depth], out=layer.weight.view(out))
            if layer.bias is not None:
                torch.sum(delta, dim=1, out=layer.bias.view(out))
            if depth:
                delta = torch.bmm(delta, layer.weight.view(rows))
                below = activations[depth]
                if self.layers[depth - 1].activation == "relu":
                    delta.mul_(below > 0)
                elif self.layers[depth - 1].activation == "tanh":
                    delta.mul_(1 - below.square())
        return loss
