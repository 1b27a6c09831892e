"""Any kernel in mixed precision: products and convolutions in bfloat16, rows, gradients and losses in the rows' own type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedkin.compute.placement import Placement
from fedkin.local.batches import Batch
from fedkin.local.noise import Noise

if TYPE_CHECKING:
    from fedkin.local.kernels import Kernel


class MixedKernel:
    """A kernel inside of torch's autocast (Micikevicius et al., Mixed Precision Training, 2018)."""

    def __init__(self, inner: Kernel, placement: Placement) -> None:
        self.inner, self.placement = inner, placement
        self.name, self.layout, self.chunk = inner.name, inner.layout, inner.chunk

    @property
    def noise(self) -> Noise | None:
        return self.inner.noise

    @noise.setter
    def noise(self, noise: Noise | None) -> None:
        self.inner.noise = noise

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """As `Kernel.gradient`."""
        with self.placement.mixed():
            return self.inner.gradient(rows, batch, out, counters).to(rows.dtype)

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """As `Kernel.outputs`."""
        with self.placement.mixed():
            return self.inner.outputs(rows, x, counters).to(rows.dtype)
