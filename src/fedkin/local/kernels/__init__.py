"""Kernels: how the gradients of a chunk of clients are computed. `choose_kernel` picks the fastest correct one by rule.

All kernels agree with a plain nn.Module + torch.optim loop (`fedkin.local.oracle`) to rounding. The rule depends on the
architecture and the processor's vector units, never on a timing, so that a run resumed on its machine repeats its numbers bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedkin.compute.placement import Placement
from fedkin.local.batches import Batch
from fedkin.local.kernels.grouped import GroupedKernel, groupable
from fedkin.local.kernels.linear import LinearKernel, dense_layers, written_out
from fedkin.local.kernels.looped import LoopedKernel
from fedkin.local.kernels.mixed import MixedKernel
from fedkin.local.kernels.vmapped import VmappedKernel
from fedkin.local.noise import Drop, Noise, drops_of, masked
from fedkin.models import Layout, ModelSpec
from fedkin.task import Task
from fedkin.task.losses import PerSample, loss_of

if TYPE_CHECKING:
    from fedkin.compute.steps import Rule
    from fedkin.local.batches import Plan
    from fedkin.local.samples import Samples

_LOOPED = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.RNNBase)
"""Layers that torch runs as one program for one client; of recurrent ones, narrow GRUs have a stacked one here."""
NARROW = 64
"""A wider GRU fills a core with one client alone (docs/benchmarks.md)."""


class Kernel(Protocol):
    """Gradients and outputs of k stacked clients."""

    name: str
    layout: Layout
    chunk: int
    """How many clients are best worked on at once."""
    noise: Noise | None
    """The dropout masks of the clients under way; None: nothing is dropped."""

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write ∇ Σ_i weight_ki ℓ_ki at `rows` (k, B) into `out` (k, P); return the losses (k,).

        Running statistics in the buffer columns of `rows`, and `counters`, move on as a training step moves them.
        """

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs), in evaluation mode."""


@runtime_checkable
class Fusing(Protocol):
    """A kernel that can take all steps itself, where they are w ← shrink·w − rate·∇f(w) + push."""

    fuses: bool

    def descend(
        self, rows: Tensor, samples: Samples, plan: Plan, rate: float, shrink: float, push: Tensor | None
    ) -> Tensor:
        """Each client's steps, in place; return the sums of its losses, (k,)."""


@runtime_checkable
class FusingRules(Protocol):
    """A kernel that can take all steps of any rule itself, down ∇f(w) + (1 − shrink)·w − push."""

    def at_once(self, tensors: int) -> int:
        """`chunk` where a step goes through so many tensors as large as the weights: theirs, gradients, moments."""

    def descend_by_rule(
        self, rows: Tensor, samples: Samples, plan: Plan, rule: Rule, shrink: float, push: Tensor | None
    ) -> Tensor:
        """Each client's steps, in place; return the sums of its losses, (k,)."""


@dataclass(frozen=True)
class Choice:
    """Which kernel serves a model, and why."""

    name: str
    reason: str
    make: Callable[[], Kernel]
    """A new kernel; every worker thread has its own."""
    variant: Callable[[ModelSpec, PerSample], Kernel]
    """A kernel for the same model with other outputs and a loss of the method's own (by vmap where `make` is linear)."""
    stochastic: bool = False
    """Training draws random numbers of torch's: clients are then trained one by one, each from its own seed."""
    stacks: bool = False
    """Whether vmap takes the model and its loss, for what a method computes of them by itself."""
    dropout: bool = False
    """The kernel drops entries by masks from the clients' own streams (`Kernel.noise`)."""


def choose_kernel(spec: ModelSpec, task: Task) -> Choice:
    """The kernel for a model, by rule; the first that fits, from the fastest to the loop, which fits all.

    In mixed precision the hand-written gradients, which are no operations that autocast knows, are passed over.
    """
    if spec.placement.precision == "float32":
        return _chosen(spec, task)
    plain = _chosen(spec, task, by_hand=False)
    wrap = partial(partial, _mixed, spec.placement)
    return replace(plain, make=wrap(plain.make), variant=wrap(plain.variant))


def _mixed(placement: Placement, make: Callable[..., Kernel], *how: Any) -> Kernel:
    return MixedKernel(make(*how), placement)


def _chosen(spec: ModelSpec, task: Task, by_hand: bool = True) -> Choice:
    if not spec.layout.slots:
        loop = partial(LoopedKernel, spec, loss_of(task))
        return Choice("none", "the clients bring models of their own, without rows", loop, LoopedKernel)
    module = spec.template()
    drops = _dropout_alone(module, spec, task)
    first = _linear(module, spec, task, drops) if by_hand else None
    return first or _grouped(spec, task) or _vmapped(spec, task, drops) or _looped(spec, task)


def _linear(module: nn.Module, spec: ModelSpec, task: Task, drops: list[Drop] | None) -> Choice | None:
    layers = dense_layers(module, spec.layout)
    if layers is None or drops is None:
        return None
    stacks = bool(written_out(task)[0]) or _loss_stacks(task)
    if drops and not stacks:
        return None  # a method's own variant would need vmap
    reason = "a plain chain of linear layers: hand-written batched gradients"
    make = partial(LinearKernel, layers, spec.layout, task)
    variant = partial(VmappedKernel, drops=drops) if stacks else LoopedKernel
    return Choice("linear", reason, make, variant, stacks=stacks, dropout=bool(drops))


def _loss_stacks(task: Task) -> bool:
    """Whether vmap can take the loss: not where it looks at a number in Python (`.item()`, `functional.one_hot`)."""
    loss, outputs = loss_of(task), torch.zeros((2, 3, task.outputs), dtype=torch.float64)
    try:
        vmap(grad(lambda own, targets: loss(own, targets).sum()))(outputs, task.probe((2, 3), torch.float64))
    except Exception:  # whatever vmap cannot do, the loop can
        return False
    return True


def _grouped(spec: ModelSpec, task: Task) -> Choice | None:
    loss = loss_of(task)
    if not groupable(spec.template(), probe(spec, task, 2)):
        return None
    if not _agrees_with_the_loop(GroupedKernel(spec, loss), spec, task):
        return None
    last = _takes_channels_last(spec, task)
    reason = "a chain of narrow layers: several clients as one grouped network, channels last"
    return Choice(
        "grouped", reason, partial(GroupedKernel, spec, loss, last), partial(LoopedKernel, channels_last=last)
    )


def _vmapped(spec: ModelSpec, task: Task, drops: list[Drop] | None) -> Choice | None:
    if drops is None or _why_not_vmapped(spec, task, drops):
        return None
    reason = "a functional module: one vmapped program"
    kernel = partial(VmappedKernel, spec, loss_of(task), drops)
    return Choice("vmap", reason, kernel, partial(VmappedKernel, drops=drops), stacks=True, dropout=bool(drops))


def _looped(spec: ModelSpec, task: Task) -> Choice:
    last = _takes_channels_last(spec, task)
    drops = _dropout_alone(spec.template(), spec, task)
    stochastic = drops is None or bool(drops)
    reason = _why_not_vmapped(spec, task, drops or [])
    if stochastic:
        reason = "training draws random numbers, as dropout does"
    how = "one client at a time" + (", channels last" if last else "")
    loop = partial(LoopedKernel, channels_last=last)
    return Choice("loop", f"{reason}: {how}", partial(loop, spec, loss_of(task)), loop, stochastic)


def _why_not_vmapped(spec: ModelSpec, task: Task, drops: list[Drop]) -> str:
    """What speaks against one vmapped program; "" if nothing does."""
    for layer in spec.template().modules():
        stacked = type(layer) is nn.GRU and layer.hidden_size <= NARROW and not layer.dropout
        if isinstance(layer, _LOOPED) and not stacked:
            return f"{type(layer).__name__} layers, wide or not in a plain chain, gain nothing from stacking"
    if spec.layout.counters:
        return "the model has integer buffers"
    try:
        if not _agrees_with_the_loop(VmappedKernel(spec, loss_of(task), drops), spec, task):
            return "vmap cannot stack this model (its result differs from the loop's)"
    except Exception as problem:  # whatever vmap cannot do, the loop can
        return f"vmap cannot stack this model ({(str(problem).strip().splitlines() or [''])[0][:100]})"
    return ""


def _dropout_alone(module: nn.Module, spec: ModelSpec, task: Task) -> list[Drop] | None:
    """The dropout layers of a model whose random numbers all come from them; None where others draw too.

    `module` is one of the spec's, passed through in training mode.
    """
    if not _draws_random_numbers(module, spec, task):
        return []
    try:
        drops = drops_of(spec.template(), probe(spec, task, 4))
    except ValueError:
        return None
    return None if _draws_random_numbers(masked(spec.template()), spec, task) else drops


def probe(spec: ModelSpec, task: Task, *shape: int) -> Tensor:
    """Made-up inputs (*shape, *input), to try a kernel on."""
    size = (*shape, *task.input_shape)
    if task.tokens:
        return torch.zeros(size, dtype=torch.int64)
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(0), device="cpu")
    return drawn.to(torch.get_default_device(), spec.dtype)


def _takes_channels_last(spec: ModelSpec, task: Task) -> bool:
    """Whether the model has 2-d convolutions and works on images stored pixel by pixel (`.view` may forbid it)."""
    module = spec.template().eval()
    if len(task.input_shape) != 3 or not any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
        return False
    images = probe(spec, task, 4)
    try:
        with torch.no_grad():
            same = torch.allclose(module(images.to(memory_format=torch.channels_last)), module(images), atol=1e-4)
        return bool(same)
    except RuntimeError:
        return False


def _draws_random_numbers(module: nn.Module, spec: ModelSpec, task: Task) -> bool:
    """Whether a pass in training mode consumes random numbers."""
    module.train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        before = torch.get_rng_state()
        module(probe(spec, task, 4))
        return not torch.equal(before, torch.get_rng_state())


def _agrees_with_the_loop(kernel: Kernel, spec: ModelSpec, task: Task) -> bool:
    """Whether gradients, running statistics and outputs of two made-up clients are the loop's."""
    row = spec.layout.pack(spec.template(), spec.dtype)
    weight = torch.full((2, 3), 1 / 3, dtype=spec.dtype)
    batch = Batch(probe(spec, task, 2, 3), task.probe((2, 3), spec.dtype), weight)
    answers = []
    loop = LoopedKernel(spec, loss_of(task))
    masked(loop.module)
    mixed = spec.placement.precision != "float32"
    close = 0.1 if mixed else 1e-3
    for plain in (kernel, loop):
        each = MixedKernel(plain, spec.placement) if mixed else plain
        rows = torch.stack([row, row])
        out = torch.zeros((2, spec.layout.n_parameters), dtype=spec.dtype)
        each.gradient(rows, batch, out)
        answers.append((out, rows, each.outputs(rows, batch.x)))
    return all(
        bool((fast - slow).abs().max() <= close * slow.abs().max().clamp(min=1e-3)) for fast, slow in zip(*answers)
    )
