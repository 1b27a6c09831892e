"""Stacked gradients of any functional nn.Module: `vmap` over clients of `grad` of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedkin.local.batches import Batch
from fedkin.local.kernels.attention import Unfused
from fedkin.local.kernels.recurrent import stackable
from fedkin.local.noise import Drop, Masked, Noise, masked
from fedkin.models import ModelSpec
from fedkin.task.losses import PerSample


class VmappedKernel:
    """One program for all clients of a chunk, made by torch.func."""

    name = "vmap"

    def __init__(self, spec: ModelSpec, loss: PerSample, drops: Sequence[Drop] = ()) -> None:
        self.layout, self.drops = spec.layout, drops
        self.noise: Noise | None = None
        self.module = stackable(masked(spec.template())).train()
        names = [name for name, layer in self.module.named_modules() if isinstance(layer, Masked)]
        self.masks = [next(n for n in names if f".{n}".endswith(f".{drop.name}")) + ".mask" for drop in drops]
        self.attention: Unfused | None = Unfused()
        """None: the first pass asked for no attention."""
        self.chunk = max(8, min(50, 2**24 // (8 * max(self.layout.n_parameters, 1))))

        def total(
            parameters: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor, w: Tensor, *more: Tensor
        ) -> Tensor:
            outputs = self._call({**parameters, **fixed}, x)
            return (loss(outputs, y, *more) * w).sum()

        self._gradient = vmap(grad_and_value(total), randomness="error")

        def predict(tensors: dict[str, Tensor], x: Tensor) -> Tensor:
            return self._call(tensors, x).reshape(len(x), -1)

        self._outputs = vmap(predict)

    def _call(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """The module of one client, from inside vmap."""
        if self.attention is None:
            plain: Tensor = functional_call(self.module, tensors, (x,))
            return plain
        with self.attention:
            outputs: Tensor = functional_call(self.module, tensors, (x,))
        if not self.attention.met:
            self.attention = None
        return outputs

    def _tensors(self, rows: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        parameters = {slot.name: slot.view(rows) for slot in self.layout.parameters}
        fixed = {slot.name: slot.view(rows) for slot in self.layout.buffers}
        return parameters, fixed

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs)."""
        parameters, fixed = self._tensors(rows)
        with torch.no_grad():
            answer: Any = self._outputs({**parameters, **fixed}, x)
        return answer

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write the gradient of Σ_i weight_ki ℓ_ki into `out` (k, P); return the losses (k,)."""
        parameters, fixed = self._tensors(rows)
        if self.noise is not None:
            fixed |= dict(zip(self.masks, self.noise.masks(batch.weight, self.drops)))
        slopes, loss = self._gradient(parameters, fixed, batch.x, batch.y, batch.weight, *batch.more)
        for slot in self.layout.parameters:
            slot.view(out).copy_(slopes[slot.name])
        return loss
