"""Which kernel clips the gradients of single samples for a model, or why none can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError
from fedkin.local.batches import Batch
from fedkin.local.kernels import Choice, Kernel, probe
from fedkin.local.kernels.per_sample import PerSampleKernel
from fedkin.models import ModelSpec
from fedkin.task import Task
from fedkin.task.losses import loss_of

UNCLIPPED = 1e30
"""A norm that no gradient has."""


class ClippingKernel(Kernel, Protocol):
    """A kernel that can clip every sample's gradient before they are summed."""

    def clipped_gradient(self, rows: Tensor, x: Tensor, y: Tensor, weight: Tensor, out: Tensor, clip: float) -> Tensor:
        """Write Σ_i weight_ki·clip(∇ℓ_ki) into `out` (k, P); return the losses (k,)."""


def clipping_kernel(choice: Choice, spec: ModelSpec, task: Task) -> Callable[[], ClippingKernel]:
    """What makes a kernel for private training of this model; a model whose samples cannot be told apart is refused."""
    if choice.name == "linear":
        return cast(Callable[[], ClippingKernel], choice.make)
    if not spec.layout.slots:
        raise FedkinError("private training clips gradients, but these clients bring models of their own, without any")
    for name, layer in spec.template().named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
            raise FedkinError(
                f"private training: layer {name!r} ({type(layer).__name__}) mixes the samples of a batch, so that one sample's "
                "gradient cannot be clipped; use GroupNorm or LayerNorm"
            )
    if choice.stochastic or spec.layout.counters:
        raise FedkinError(f"private training cannot clip samples of this model one by one: {choice.reason}")
    drops = getattr(choice.variant, "keywords", {}).get("drops", ()) if choice.dropout else ()

    def make() -> ClippingKernel:
        return PerSampleKernel(spec, loss_of(task), drops)

    problem = _why_not(make(), choice.make(), spec, task)
    if problem:
        raise FedkinError(f"private training cannot clip samples of this model one by one: {problem}")
    return make


def _why_not(kernel: ClippingKernel, plain: Kernel, spec: ModelSpec, task: Task) -> str:
    """What is wrong with a kernel whose samples' gradients, unclipped, do not sum to the gradient; "" if nothing is."""
    rows = spec.layout.pack(spec.template(), spec.dtype)[None]
    x, y = probe(spec, task, 1, 3), task.probe((1, 3), spec.dtype)
    weight = torch.full((1, 3), 1 / 3, dtype=spec.dtype)
    found, due = torch.zeros((2, 1, spec.layout.n_parameters), dtype=spec.dtype)
    plain.gradient(rows.clone(), Batch(x, y, weight), due)
    try:
        kernel.clipped_gradient(rows, x, y, weight, found, UNCLIPPED)
    except Exception as problem:
        return f"vmap cannot take its samples apart ({(str(problem).strip().splitlines() or [''])[0][:100]})"
    apart = (found - due).abs().max() > 1e-3 * due.abs().max().clamp(min=1e-3)
    return "the gradients of its samples do not sum to that of a batch" if bool(apart) else ""
