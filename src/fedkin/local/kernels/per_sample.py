"""Clipped gradients of any functional nn.Module: `vmap` over samples of `grad` of one sample's loss, client after client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedkin.local.kernels.vmapped import VmappedKernel
from fedkin.local.noise import Drop
from fedkin.models import ModelSpec
from fedkin.task.losses import PerSample

MOST_HELD = 2**23
"""So many entries of samples' gradients are held at a time."""


class PerSampleKernel(VmappedKernel):
    """The vmapped kernel, with the gradient of every sample clipped before they are summed."""

    name = "per-sample"
    chunk = 1

    def __init__(self, spec: ModelSpec, loss: PerSample, drops: Sequence[Drop] = ()) -> None:
        super().__init__(spec, loss, drops)
        self.chunk = 1

        def of_one(
            parameters: dict[str, Tensor], fixed: dict[str, Tensor], masks: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> Tensor:
            outputs = self._call({**parameters, **fixed, **masks}, x[None])
            return loss(outputs, y[None]).sum()

        self._each = vmap(grad_and_value(of_one), in_dims=(None, None, 0, 0, 0), randomness="error")

    def clipped_gradient(self, rows: Tensor, x: Tensor, y: Tensor, weight: Tensor, out: Tensor, clip: float) -> Tensor:
        """Write Σ_i weight_ki·clip(∇ℓ_ki) into `out` (k, P), the gradient of every sample clipped to a norm; the losses (k,)."""
        drawn = [] if self.noise is None else self.noise.masks(weight, self.drops)
        losses = rows.new_zeros(len(rows))
        most = max(1, MOST_HELD // max(1, self.layout.n_parameters))
        out.zero_()
        for k in range(len(rows)):
            parameters, fixed = ({name: t[0] for name, t in part.items()} for part in self._tensors(rows[k : k + 1]))
            real = int((weight[k] > 0).sum())
            for start in range(0, real, most):
                some = slice(start, min(start + most, real))
                masks = {name: mask[k, some][:, None] for name, mask in zip(self.masks, drawn)}
                slopes, loss = self._each(parameters, fixed, masks, x[k, some], y[k, some])
                flat = torch.cat([slopes[slot.name].flatten(1) for slot in self.layout.parameters], dim=1)
                factor = weight[k, some] * (clip / flat.norm(dim=1).clamp_min(clip))
                out[k] += factor @ flat
                losses[k] += (loss * weight[k, some]).sum()
        return losses
