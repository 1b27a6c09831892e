"""Kernels: how the gradients of a chunk of clients are computed. `choose` picks the fastest correct one by rule.

All kernels agree with a plain nn.Module + torch.optim loop (`fedkin.local.oracle`) to rounding. The rule depends on the
architecture alone, never on a timing, so that a resumed run repeats its numbers bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedkin.local.kernels.grouped import GroupedKernel, groupable
from fedkin.local.kernels.linear import LinearKernel, dense_layers
from fedkin.local.kernels.looped import LoopedKernel
from fedkin.local.kernels.vmapped import VmappedKernel
from fedkin.local.losses import Loss
from fedkin.models import Layout, ModelSpec
from fedkin.task import Task

_LOOPED = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.RNNBase,
)


class Kernel(Protocol):
    """Gradients and outputs of k stacked clients."""

    name: str
    layout: Layout
    chunk: int
    """How many clients are best worked on at once."""

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
        """Write ∇ Σ_i weight_ki ℓ_ki at `rows` (k, B) into `out` (k, P); return the losses (k,).

        `more` (k, b, …) goes to the loss, where it is one of a method's own.

        Running statistics in the buffer columns of `rows`, and `counters`, move on as a training step moves them.
        """

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs), in evaluation mode."""


@dataclass(frozen=True)
class Choice:
    """Which kernel serves a model, and why."""

    name: str
    reason: str
    make: Callable[[], Kernel]
    """A new kernel; every worker thread has its own."""
    variant: Callable[[ModelSpec, Loss], Kernel]
    """A kernel for the same model with other outputs and a loss of the method's own (by vmap where `make` is linear)."""
    stochastic: bool = False
    """Training draws random numbers (dropout): clients are then trained one by one, each from its own seed."""


def choose(spec: ModelSpec, task: Task) -> Choice:
    """The kernel for a model, by rule."""

    def vmapped(spec: ModelSpec, loss: Loss | None = None) -> Kernel:
        return VmappedKernel(spec, task.kind, loss)

    def plain_loop(spec: ModelSpec, loss: Loss | None = None) -> Kernel:
        return LoopedKernel(spec, task.kind, loss=loss)

    if not spec.layout.slots:
        return Choice(
            "none", "the clients bring models of their own, without rows", lambda: plain_loop(spec), plain_loop
        )
    module = spec.template()
    layers = dense_layers(module, spec.layout)
    if layers is not None:
        reason = "a plain chain of linear layers: hand-written batched gradients"
        return Choice("linear", reason, lambda: LinearKernel(layers, spec.layout, task.kind), vmapped)

    channels_last = _takes_channels_last(spec, task)

    def looped(reason: str, stochastic: bool = False) -> Choice:
        how = "one client at a time" + (", channels last" if channels_last else "")

        def make(spec: ModelSpec = spec, loss: Loss | None = None) -> Kernel:
            return LoopedKernel(spec, task.kind, channels_last, loss)

        return Choice("loop", f"{reason}: {how}", make, make, stochastic)

    if groupable(spec.template(), _probe(spec, task, 2)) and _agrees_with_the_loop(
        GroupedKernel(spec, task.kind), spec, task
    ):
        reason = "a chain of narrow layers: several clients as one grouped network, channels last"

        def grouped() -> Kernel:
            return GroupedKernel(spec, task.kind, channels_last)

        return Choice("grouped", reason, grouped, looped("").variant)
    if _draws_random_numbers(spec, task):
        return looped("training draws random numbers, as dropout does", stochastic=True)
    for layer in module.modules():
        if isinstance(layer, _LOOPED):
            return looped(f"{type(layer).__name__} layers, wide or not in a plain chain, gain nothing from stacking")
    if spec.layout.counters:
        return looped("the model has integer buffers")
    try:
        if not _agrees_with_the_loop(VmappedKernel(spec, task.kind), spec, task):
            raise ValueError("its result differs from the loop's")
    except Exception as problem:  # whatever vmap cannot do, the loop can
        return looped(f"vmap cannot stack this model ({str(problem).strip().splitlines()[0][:100]})")
    return Choice("vmap", "a functional module: one vmapped program", lambda: vmapped(spec), vmapped)


def _probe(spec: ModelSpec, task: Task, *shape: int) -> Tensor:
    size = (*shape, *task.input_shape)
    if task.tokens:
        return torch.zeros(size, dtype=torch.int64)
    return torch.rand(size, generator=torch.Generator().manual_seed(0)).to(spec.dtype)


def _takes_channels_last(spec: ModelSpec, task: Task) -> bool:
    """Whether the model has 2-d convolutions and works on images stored pixel by pixel (`.view` may forbid it)."""
    module = spec.template().eval()
    if len(task.input_shape) != 3 or not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return False
    images = _probe(spec, task, 4)
    try:
        with torch.no_grad():
            same = torch.allclose(module(images.to(memory_format=torch.channels_last)), module(images), atol=1e-4)
        return bool(same)
    except RuntimeError:
        return False


def _draws_random_numbers(spec: ModelSpec, task: Task) -> bool:
    """Whether two passes in training mode consume random numbers."""
    module = spec.template().train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        before = torch.get_rng_state()
        module(_probe(spec, task, 4))
        return not torch.equal(before, torch.get_rng_state())


def _agrees_with_the_loop(kernel: Kernel, spec: ModelSpec, task: Task) -> bool:
    """Whether gradients, running statistics and outputs of two made-up clients are the loop's."""
    row = spec.layout.pack(spec.template(), spec.dtype)
    x = _probe(spec, task, 2, 3)
    if task.kind == "classification":
        y = torch.zeros((2, 3), dtype=torch.int64)
    else:
        y = torch.zeros((2, 3, *task.output_shape), dtype=spec.dtype)
    weight = torch.full((2, 3), 1 / 3, dtype=spec.dtype)
    answers = []
    for each in (kernel, LoopedKernel(spec, task.kind)):
        rows = torch.stack([row, row])
        out = torch.zeros((2, spec.layout.n_parameters), dtype=spec.dtype)
        each.gradient(rows, x, y, weight, out)
        answers.append((out, rows, each.outputs(rows, x)))
    return all(
        bool((fast - slow).abs().max() <= 1e-3 * slow.abs().max().clamp(min=1e-3)) for fast, slow in zip(*answers)
    )
