"""Stacked gradients of fully connected networks: which networks these are, and their tensors in the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedkin.compute.processor import cache_per_core
from fedkin.compute.steps import Rule
from fedkin.local.kernels import chain
from fedkin.local.noise import Drop, Noise
from fedkin.models import Layout, Slot
from fedkin.task import Task
from fedkin.task.losses import described, loss_of, parse_loss

if TYPE_CHECKING:
    from fedkin.local.batches import Batch, Plan
    from fedkin.local.samples import Samples


@dataclass(frozen=True)
class Dense:
    """A linear layer and the activation that follows it; `drop` is the dropout of its inputs."""

    weight: Slot
    bias: Slot | None
    activation: str
    drop: float = 0.0


def dense_layers(module: nn.Module, layout: Layout) -> list[Dense] | None:
    """The layers of a network that is a plain chain of Linear, ReLU, Tanh and Dropout; None for anything else.

    A hook may change what a layer puts out, so that a chain with one is not plain.
    """
    if listened_to(module):
        return None
    slots = {slot.name: slot for slot in layout.parameters}
    found: list[Dense] = []
    pending: tuple[Slot, Slot | None] | None = None
    dropped, drop = 0.0, 0.0
    """Of the inputs of the pending layer, and of the one to come."""
    for name, layer in chain_of("", module):
        if type(layer) is nn.Linear:
            if pending is not None:
                found.append(Dense(*pending, activation="none", drop=dropped))
            weight, bias = f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")
            if weight not in slots or (layer.bias is not None and bias not in slots):
                return None  # a frozen layer
            pending, dropped, drop = (slots[weight], slots.get(bias)), drop, 0.0
        elif type(layer) in (nn.ReLU, nn.Tanh) and pending is not None:
            found.append(Dense(*pending, activation="relu" if type(layer) is nn.ReLU else "tanh", drop=dropped))
            pending = None
        elif type(layer) is nn.Dropout and not drop:
            if pending is not None:
                found.append(Dense(*pending, activation="none", drop=dropped))
                pending = None
            drop = float(layer.p)
        elif type(layer) is nn.Flatten and layer.start_dim == 1 and layer.end_dim == -1 and not found and not pending:
            continue
        elif type(layer) is not nn.Identity:
            return None
    if (
        pending is None
        or drop
        or len(slots) != sum(1 + (d.bias is not None) for d in found) + 1 + (pending[1] is not None)
    ):
        return None
    return [*found, Dense(*pending, activation="none", drop=dropped)]


def listened_to(module: nn.Module) -> bool:
    """Whether a layer has a forward hook."""
    return any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())


def chain_of(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested nn.Sequentials in turn, with their names; a layer that stands at several places comes as often."""
    if type(module) is nn.Sequential:
        for name, child in module._modules.items():  # `named_children` tells each layer once
            assert child is not None
            yield from chain_of(f"{prefix}.{name}".lstrip("."), child)
    else:
        yield prefix, module


@dataclass(frozen=True)
class Pass:
    """What went into every layer, (k, width, b), dropped entries included, and the same before dropout; outputs last."""

    weights: list[Tensor]
    a: list[Tensor]
    values: list[Tensor]
    masks: dict[int, Tensor]
    """Of the layers' inputs, by layer."""

    @property
    def outputs(self) -> Tensor:
        return self.a[-1]


class LinearKernel:
    """Gradients and outputs of a stack of fully connected networks (mathematics: `fedkin.local.kernels.chain`)."""

    name = "linear"

    def __init__(self, layers: list[Dense], layout: Layout, task: Task) -> None:
        self.layers, self.layout = layers, layout
        self.slots = [*(layer.weight for layer in layers), *(layer.bias for layer in layers)]
        self.noise: Noise | None = None
        self.drops = [Drop(d.weight.name, d.drop, (d.weight.shape[1],)) for d in layers if d.drop]
        self.loss, (self.form, self.bend, self.class_weight) = loss_of(task), written_out(task)
        self.fuses = bool(self.form) and not self.drops
        """Whether `descend` can take all steps itself: the gradient of the loss is written out, and nothing is dropped."""
        self.activations = [layer.activation for layer in layers]
        self.chunk = self.at_once(1)

    def at_once(self, tensors: int) -> int:
        """How many clients, each with so many tensors as large as its weights: enough to drown the overhead of a call, few
        enough that these and the batches stay in the last cache."""
        per_client = 4 * max(tensors * self.layout.n_parameters, 32 * self.layers[0].weight.shape[1])
        return max(5, min(1000, min(cache_per_core(), 2**22) // per_client))

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs)."""
        return chain.forward(*self._tensors(rows), self.activations, x.flatten(2).transpose(1, 2))[-1].transpose(1, 2)

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write the gradient of Σ_i weight_ki ℓ_ki into `out` (k, P); return the losses (k,)."""
        went = self.ahead(rows, batch.x, batch.weight)
        loss, delta = self.output_gradient(went.outputs, batch.y, batch.weight)
        self.back(went, delta, out)
        return loss

    def clipped_gradient(self, rows: Tensor, x: Tensor, y: Tensor, weight: Tensor, out: Tensor, clip: float) -> Tensor:
        """Write Σ_i weight_ki·clip(∇ℓ_ki) into `out` (k, P), the gradient of every sample clipped to a norm; the losses (k,)."""
        counted = (weight > 0).to(weight.dtype)
        went = self.ahead(rows, x, counted)
        losses, delta = self.output_gradient(went.outputs, y, counted)
        deltas = [delta]  # of every layer, (k, out, b)
        for layer in reversed(range(1, len(went.weights))):
            delta = chain.below(went.weights[layer], delta, went.values[layer], self.activations[layer - 1])
            if layer in went.masks:
                delta.mul_(went.masks[layer])
            deltas.insert(0, delta)
        chain.clip_samples(went.a, deltas, self._tensors(rows)[1], weight, clip)
        slopes, bias_slopes = self._tensors(out)
        for layer, delta in enumerate(deltas):
            torch.bmm(delta, went.a[layer].transpose(1, 2), out=slopes[layer])
            if self.layers[layer].bias is not None:
                torch.sum(delta, dim=2, out=bias_slopes[layer])
        return losses * weight.amax(dim=1)

    def ahead(self, rows: Tensor, x: Tensor, weight: Tensor) -> Pass:
        """A training pass of the samples (k, b, *input) with weights (k, b) through the networks."""
        weights, biases = self._tensors(rows)
        inputs = x.flatten(2).transpose(1, 2)
        masks = self._masks(weight)
        if masks:
            return Pass(weights, *self._dropped(weights, biases, inputs, masks), masks)
        a = chain.forward(weights, biases, self.activations, inputs)
        return Pass(weights, a, a, masks)

    def back(self, went: Pass, delta: Tensor, out: Tensor, at: int = 0, more: Tensor | None = None) -> None:
        """Write the gradient into `out` (k, P), from ∂/∂outputs (k, C, b); `more` is added to ∂/∂(what layer `at` gets)."""
        slopes, bias_slopes = self._tensors(out)
        for layer in reversed(range(len(slopes))):
            torch.bmm(delta, went.a[layer].transpose(1, 2), out=slopes[layer])
            if self.layers[layer].bias is not None:
                torch.sum(delta, dim=2, out=bias_slopes[layer])
            if layer:
                added = more if layer == at else None
                delta = chain.below(went.weights[layer], delta, went.values[layer], self.activations[layer - 1], added)
                if layer in went.masks:
                    delta.mul_(went.masks[layer])

    def output_gradient(self, outputs: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The losses (k,) and ∂/∂outputs (k, C, b): written out, or by autograd for the outputs alone."""
        if self.form and not (
            self.form == "cross-entropy" and y.is_floating_point()
        ):  # else distributions over classes
            like = self.class_weight.to(outputs.dtype)
            return chain.output_gradient(outputs, y, weight, self.form, self.bend, like)
        with torch.enable_grad():
            leaf = outputs.transpose(1, 2).detach().requires_grad_()
            each = self.loss(leaf.flatten(0, 1), y.flatten(0, 1)).view(weight.shape)
            losses = (each * weight).sum(dim=1)
            (slope,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), slope.transpose(1, 2)

    def _masks(self, weight: Tensor) -> dict[int, Tensor]:
        """Dropout masks (k, width, b) by layer, for the layer's inputs; none outside training."""
        if self.noise is None or not self.drops:
            return {}
        drawn = self.noise.masks(weight, self.drops)
        places = [place for place, layer in enumerate(self.layers) if layer.drop]
        return {place: mask.transpose(1, 2) for place, mask in zip(places, drawn)}

    def _dropped(
        self, weights: list[Tensor], biases: list[Tensor], inputs: Tensor, masks: dict[int, Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What goes into every layer, dropped entries included, and the same before dropout (for the activations' slopes)."""
        a, values = [inputs * masks[0] if 0 in masks else inputs], [inputs]
        for layer, activation in enumerate(self.activations):
            values.append(chain.forward([weights[layer]], [biases[layer]], [activation], a[-1])[1])
            mask = masks.get(layer + 1)
            a.append(values[-1] if mask is None else values[-1] * mask)
        return a, values

    def descend(
        self, rows: Tensor, samples: Samples, plan: Plan, rate: float, shrink: float, push: Tensor | None
    ) -> Tensor:
        """Each client's steps w ← shrink·w − rate·∇f(w) + push (k, P), in place; return the sums of its losses, (k,)."""
        parameters, half = self._flat(rows), len(self.layers)
        blocks = list(map(Tensor.contiguous, parameters))  # in the rows they are strided: slower products
        pushes = [] if push is None else list(map(Tensor.contiguous, self._flat(push)))
        weights, biases = blocks[:half], blocks[half:]
        total, how = rows.new_zeros(len(rows)), (rate, shrink, self.form, self.bend, self.class_weight.to(rows))
        for x, y, index, share, steps, affine in samples.pieces(plan):
            total[: len(steps)] += chain.descend_chain(
                weights, biases, pushes, self.activations, x, y, index, share, steps, *how, *affine
            )
        for old, new in zip(parameters, blocks):
            old.copy_(new)
        return total

    def descend_by_rule(
        self, rows: Tensor, samples: Samples, plan: Plan, rule: Rule, shrink: float, push: Tensor | None
    ) -> Tensor:
        """Each client's steps of the rule down ∇f(w) + (1 − shrink)·w − push (k, P), in place; the sums of its losses, (k,)."""
        weights = rows[:, : self.layout.n_parameters]
        slopes = torch.empty_like(weights, memory_format=torch.contiguous_format)
        added = rows.new_empty(0) if push is None else push
        (w, b), (dw, db) = self._tensors(weights), self._tensors(slopes)
        loss = shrink, self.form, self.bend, self.class_weight.to(rows)
        how, total = (rule.name, rule.moments, rule.numbers), rows.new_zeros(len(rows))
        for x, y, index, share, steps, affine in samples.pieces(plan):
            batches = x, y, index, share, steps
            total[: len(steps)] += chain.descend_by_rule(
                weights, slopes, w, b, dw, db, added, self.activations, *batches, *loss, *how, *affine
            )
        return total

    def descend_privately(
        self,
        rows: Tensor,
        batches: Iterable[Batch],
        rate: float,
        shrink: float,
        push: Tensor | None,
        clip: float,
        noise: Callable[[int], Iterator[tuple[int, Tensor]]],
    ) -> Tensor:
        """`descend` with the gradient of every sample clipped and noise added.

        `noise(a)` is that of a step of the first `a` clients, piece by piece: the first client of a piece, and numbers (m, P).
        """
        parameters, width = self._flat(rows), self.layout.n_parameters
        half, inside = len(self.layers), any(chain.large(tensor) for tensor in parameters[: len(self.layers)])
        # Large matrices are multiplied one by one: where they are in the rows is no matter, and noise takes one pass.
        blocks = parameters if inside else [tensor.contiguous() for tensor in parameters]
        pushes = [] if push is None else [tensor.contiguous() for tensor in self._flat(push)]
        how = rate, shrink, self.form, self.bend, self.class_weight.to(rows.dtype), clip
        total = rows.new_zeros(len(rows))
        for batch in batches:
            active = batch.active
            some = [tensor[:active] for tensor in blocks]
            total[:active] += chain.private_step(
                some[:half],
                some[half:],
                [tensor[:active] for tensor in pushes],
                self.activations,
                batch.x.flatten(2).transpose(1, 2),
                batch.y,
                batch.weight,
                torch.count_nonzero(batch.weight, dim=1).tolist(),
                *how,
            )
            for first, numbers in noise(active):
                own = slice(first, first + numbers.shape[0])
                if inside:
                    rows[own, :width].sub_(numbers, alpha=rate)
                    continue
                for block, disturbance in zip(blocks, self._flat(numbers)):
                    block[own].sub_(disturbance, alpha=rate)
        if not inside:
            for old, new in zip(parameters, blocks):
                old.copy_(new)
        return total

    def _tensors(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Weights (k, out, in) and biases (k, out) of all layers, as views of rows (k, B); no bias is (k, 0)."""
        flat, half = self._flat(rows), len(self.layers)
        return flat[:half], flat[half:]

    def _flat(self, rows: Tensor) -> list[Tensor]:
        """All weights, then all biases."""
        return [rows[:, :0] if slot is None else slot.view(rows) for slot in self.slots]


def written_out(task: Task) -> tuple[str, float, Tensor]:
    """The loss whose gradient `chain.output_gradient` has by hand, its δ, and its class weights; "" for all others."""
    none = torch.zeros(0, dtype=torch.float64)
    known = described(task.loss)
    if known is None or known.name not in ("cross-entropy", "mse", "huber") or task.label_smoothing:
        return "", 0.0, none
    weights = none if task.class_weight is None else torch.tensor(task.class_weight, dtype=torch.float64)
    return known.name, parse_loss(str(task.loss))[1] or 0.0, weights
