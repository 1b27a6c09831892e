"""Stacked gradients of fully connected networks: which networks these are, and their tensors in the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedkin.local.batches import Plan
from fedkin.local.kernels import chain
from fedkin.models import Layout, Slot
from fedkin.task import Kind


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
    for name, layer in chain_of("", module):
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


def chain_of(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested nn.Sequentials in turn, with their names."""
    if type(module) is nn.Sequential:
        for name, child in module.named_children():
            yield from chain_of(f"{prefix}.{name}".lstrip("."), child)
    else:
        yield prefix, module


class LinearKernel:
    """Gradients and outputs of a stack of fully connected networks (mathematics: `fedkin.local.kernels.chain`)."""

    name = "linear"

    def __init__(self, layers: list[Dense], layout: Layout, kind: Kind) -> None:
        self.layers, self.layout, self.classes = layers, layout, kind == "classification"
        self.activations = [layer.activation for layer in layers]
        # Enough clients to drown the overhead of a call, few enough that their weights and batches stay in cache.
        per_client = 4 * max(layout.n_parameters, 32 * layers[0].weight.shape[1])
        self.chunk = max(5, min(1000, 2**21 // per_client))

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs)."""
        return chain.forward(*self._tensors(rows), self.activations, x.flatten(2).transpose(1, 2))[-1].transpose(1, 2)

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
        weights, biases = self._tensors(rows)
        slopes, bias_slopes = self._tensors(out)
        a = chain.forward(weights, biases, self.activations, x.flatten(2).transpose(1, 2))
        loss, delta = chain.output_gradient(a[-1], y, weight, self.classes)
        for layer in reversed(range(len(weights))):
            torch.bmm(delta, a[layer].transpose(1, 2), out=slopes[layer])
            if self.layers[layer].bias is not None:
                torch.sum(delta, dim=2, out=bias_slopes[layer])
            if layer:
                delta = chain.below(weights[layer], delta, a[layer], self.activations[layer - 1])
        return loss

    def descend(
        self, rows: Tensor, x: Tensor, y: Tensor, plan: Plan, rate: float, shrink: float, push: Tensor | None
    ) -> Tensor:
        """Each client's steps w ← shrink·w − rate·∇f(w) + push (k, P), in place; return the sums of its losses, (k,)."""
        parameters = [tensor for kind in self._tensors(rows) for tensor in kind]
        blocks = [tensor.contiguous() for tensor in parameters]  # in the rows they are strided: slower products
        pushes = [] if push is None else [tensor.contiguous() for kind in self._tensors(push) for tensor in kind]
        half = len(self.layers)
        total = chain.descend(
            blocks[:half],
            blocks[half:],
            pushes,
            self.activations,
            x.flatten(1),
            y,
            plan.index,
            plan.weight,
            plan.steps.tolist(),
            rate,
            shrink,
            self.classes,
        )
        for old, new in zip(parameters, blocks):
            old.copy_(new)
        return total

    def _tensors(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Weights (k, out, in) and biases (k, out) of all layers, as views of rows (k, B); no bias is (k, 0)."""
        weights = [layer.weight.view(rows) for layer in self.layers]
        return weights, [rows[:, :0] if layer.bias is None else layer.bias.view(rows) for layer in self.layers]
