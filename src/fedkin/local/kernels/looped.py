"""Gradients client by client with an ordinary nn.Module whose tensors are views of the client's row.

The path for everything that gains nothing from stacking (convolutions), or cannot be stacked safely: batch norm,
dropout, recurrent layers. The module is bound to a row without a copy, so an update of the row is an update of the
module, and running statistics land in the row's buffer columns by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.local.batches import Batch
from fedkin.local.kernels.linear import chain_of, listened_to
from fedkin.local.noise import Noise
from fedkin.models import ModelSpec
from fedkin.task.losses import PerSample

_NORMS = (nn.modules.batchnorm._BatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class LoopedKernel:
    """One module, bound to one client's row after the other. Not shared between threads."""

    name = "loop"
    chunk = 1  # all steps of one client in turn: its row and batches stay in cache

    def __init__(self, spec: ModelSpec, loss: PerSample, channels_last: bool = False) -> None:
        self.layout, self.loss = spec.layout, loss
        self.noise: Noise | None = None
        # Convolutions on images stored channel by channel are 1.5–2× slower (measured); the numbers are the same.
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.module = spec.template().train()
        self.parameters = dict(self.module.named_parameters())
        tensors: dict[str, Any] = {**self.parameters, **dict(self.module.named_buffers())}
        self.tensors = [(slot, tensors[slot.name]) for slot in self.layout.slots]
        self.trained = [(slot, self.parameters[slot.name]) for slot in self.layout.parameters]
        self.counters = [tensors[name] for name in self.layout.counters]
        self.forward = in_best_order(self.module)
        self.norms = [m for m in self.module.modules() if isinstance(m, _NORMS)]
        self._row: tuple[int, ...] | None = None
        self._slopes: int | None = None

    def _bind(self, row: Tensor, slopes: Tensor | None = None) -> None:
        """Let the module's tensors be views of `row` (B,) and their gradients views of `slopes` (P,)."""
        place = (row.data_ptr(), row.shape[0])
        if place != self._row:
            for slot, tensor in self.tensors:
                tensor.data = row[slot.start : slot.stop].view(slot.shape)
            self._row = place
        if slopes is not None and slopes.data_ptr() != self._slopes:
            for slot, parameter in self.trained:
                parameter.grad = slopes[slot.start : slot.stop].view(slot.shape)
            self._slopes = slopes.data_ptr()

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs), in evaluation mode."""
        self.module.eval()
        with torch.no_grad():
            answers = []
            for row, inputs in zip(rows, x):
                self._bind(row)
                answer = self.forward(inputs.to(memory_format=self.memory_format))
                answers.append(answer.reshape(len(inputs), -1))
        self.module.train()
        return torch.stack(answers)

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write the gradient of Σ_i weight_ki ℓ_ki into `out` (k, P); return the losses (k,).

        Samples of weight zero (padding) are left out, so that batch norm never sees them.
        """
        x, y, weight, more = batch
        losses = []
        for k in range(len(rows)):
            self._bind(rows[k], out[k])
            out[k].zero_()
            share = weight[k]
            n = int((share > 0).sum()) if float(share[-1]) == 0 else len(share)
            inputs, targets, share = x[k, :n], y[k, :n], share[:n]
            if counters is not None:
                for tensor, value in zip(self.counters, counters[k]):
                    tensor.copy_(value)
            for norm in self.norms:
                norm.train(n > 1)  # the variance of one sample is undefined: such a batch uses the running statistics
            outputs = self.forward(inputs.to(memory_format=self.memory_format))
            loss = (self.loss(outputs, targets, *(entry[k, :n] for entry in more)) * share).sum()
            loss.backward()
            if counters is not None:
                for c, tensor in enumerate(self.counters):
                    counters[k, c] = tensor
            losses.append(loss.detach())
        return torch.stack(losses)


def pooled_first(layers: Iterable[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The layers of a chain with every ReLU behind the max pooling that follows it.

    max commutes with x ↦ max(x, 0): the same numbers bit by bit, and the same gradients, since a window without a positive
    entry has none either way. The ReLU passes over, and masks on the way back, a quarter of the entries.
    """
    found: list[tuple[str, nn.Module]] = []
    for name, layer in layers:
        pools = type(layer) is nn.MaxPool2d and not layer.return_indices
        place = len(found) - 1 if pools and found and type(found[-1][1]) is nn.ReLU else len(found)
        found.insert(place, (name, layer))
    return found


def in_best_order(module: nn.Module) -> nn.Module:
    """The module, or where it is a plain chain that nobody listens to, its layers in the order of `pooled_first`."""
    chain = list(chain_of("", module))
    ordered = pooled_first(chain)
    if listened_to(module) or ordered == chain:
        return module
    return nn.Sequential(*(layer for _, layer in ordered))
