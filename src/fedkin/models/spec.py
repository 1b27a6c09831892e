"""ModelSpec: one architecture for all clients, and the way between modules and rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.compute.placement import HOST, Placement, on_device
from fedkin.errors import FedkinError
from fedkin.models.layout import Layout
from fedkin.models.networks import build_network
from fedkin.streams import Streams
from fedkin.task import Task

NOTHING_TRAINED = "every parameter of the model is frozen, so that nothing is left to train; leave some trainable"

ModelLike = str | nn.Module | Callable[[], Any] | Mapping[str, Any]


@dataclass(frozen=True)
class ModelSpec:
    """An architecture: how to build it, and the layout of its rows.

    `name` is the spec of a built-in network, or None for a user's own factory.
    """

    factory: Callable[[], nn.Module]
    layout: Layout
    dtype: torch.dtype
    name: str | None = None
    copied: bool = False
    """Whether the user gave a module, whose weights are the initial ones."""
    placement: Placement = HOST
    """Where, and in which precision, the clients compute."""
    frozen: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """The values of the layout's frozen tensors, which all modules share; none before `settled`."""
    caches: bool = False
    """Whether clients may keep what frozen first layers make of their samples (`fedkin.models.front`)."""

    @classmethod
    def of(cls, model: ModelLike, task: Task, dtype: torch.dtype = torch.float32) -> ModelSpec:
        """From the name of a built-in network, a callable that returns an nn.Module, or a module, which is copied.

        A module's own weights are the initial ones. Lazy layers are given their shapes, and of Hugging Face-style outputs the
        logits are taken.
        """
        name = model if isinstance(model, str) else None
        if isinstance(model, Mapping):
            raise FedkinError(
                "a model per client (a dict) needs a method that exchanges predictions, not weights: use fedrelax"
            )

        def plain() -> nn.Module:
            return ready(_made(model, task), task, dtype)

        def factory() -> nn.Module:
            return Logits(plain()) if wrapped else plain()

        with torch.random.fork_rng(devices=[]):
            module = plain()
            output = _probed(module, task, dtype)
            wrapped = hasattr(output, "logits") or (isinstance(output, Mapping) and "logits" in output)
            if wrapped:
                module = Logits(module)
                output = _probed(module, task, dtype)
        _check_output(output, task)
        layout = Layout.of(module)
        if layout.frozen and not layout.parameters:
            raise FedkinError(NOTHING_TRAINED)
        return cls(factory, layout, dtype, name, isinstance(model, nn.Module))

    def template(self) -> nn.Module:
        """A new module on torch's default device. Its values do not matter, but for the frozen ones, which all share there.

        The global random state is left alone.
        """
        with torch.random.fork_rng(devices=[]):
            module = self.factory().to(torch.get_default_device())
        tensors: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, value in self.frozen.items():
            tensors[name].data = value.to(tensors[name].device)
        return module

    def settled(self, streams: Streams) -> ModelSpec:
        """The spec with values of its frozen tensors: those of the run's initial weights, unless it has them already."""
        if not self.layout.frozen or self.frozen:
            return self
        module = self._initial(streams)
        tensors: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return replace(self, frozen={name: tensors[name].detach() for name in self.layout.frozen})

    def placed(self) -> ModelSpec:
        """The spec with the values of its frozen tensors on the device of its placement, once for all modules there."""
        if self.placement.on_host or not self.frozen:
            return self
        return replace(self, frozen=on_device(self.frozen, self.placement.device))

    def initial_row(self, streams: Streams, index: int = 0) -> Tensor:
        """The common initial weights w₀ (or the `index`-th set of them), shape (B,)."""
        with torch.device("cpu"):
            row = self.layout.pack(self._initial(streams, index), self.dtype)
        return row.to(torch.get_default_device())

    def _initial(self, streams: Streams, index: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            with torch.device("cpu"):  # other devices draw other numbers
                torch.manual_seed(streams.integer("init", index))
                module = self.factory()
                if index and self.copied:  # a second set of weights must differ from the module's own
                    module.apply(_draw_again)
            return module

    def seen_as(self, wrap: Callable[[nn.Module], nn.Module], name: Callable[[str], str]) -> ModelSpec:
        """The same rows for another module around (or inside) this one, whose tensors have other names."""
        factory, frozen = self.factory, {name(key): value for key, value in self.frozen.items()}
        renamed = self.layout.renamed(name)
        return ModelSpec(
            lambda: wrap(factory()), renamed, self.dtype, self.name, placement=self.placement, frozen=frozen
        )

    def initial_counters(self) -> Tensor:
        """The integer buffers at the start, shape (number of counters,)."""
        if not self.layout.counters:
            return torch.zeros(0, dtype=torch.int64)
        buffers = dict(self.template().named_buffers())
        values = [int(buffers[name].sum()) for name in self.layout.counters]
        return torch.tensor(values, dtype=torch.int64)

    def module(self, row: Tensor, counters: Tensor | None = None) -> nn.Module:
        """A ready module in evaluation mode with the values of a row (B,)."""
        module = self.layout.unpack(row, self.template())
        if counters is not None:
            buffers = dict(module.named_buffers())
            for name, value in zip(self.layout.counters, counters):
                buffers[name].fill_(int(value))
        return module.eval()


class Logits(nn.Module):
    """A module whose output is an object or a dict with `logits`, as Hugging Face's are: only these are put out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output = self.inner(x)
        found: Tensor = output["logits"] if isinstance(output, Mapping) else output.logits
        return found


def _made(model: Any, task: Task) -> nn.Module:
    """A new module from what the user gave."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    made = build_network(model, task) if isinstance(model, str) else model() if callable(model) else None
    if not isinstance(made, nn.Module):
        raise FedkinError(
            "model must be the name of a built-in network or a callable that returns a new nn.Module, or a module; "
            f"got {type(model).__name__}"
        )
    return made


def ready(module: nn.Module, task: Task, dtype: torch.dtype) -> nn.Module:
    """The module in the run's number type, lazy layers with their shapes, its output a tensor."""
    if any(map(nn.parameter.is_lazy, (*module.parameters(), *module.buffers()))):
        _probed(module.to(dtype), task, dtype)
    return module.to(dtype)


def _draw_again(layer: nn.Module) -> None:
    reset = getattr(layer, "reset_parameters", None)
    if callable(reset):
        reset()


def _probed(module: nn.Module, task: Task, dtype: torch.dtype) -> Any:
    """What the model puts out for two made-up inputs."""
    probe = torch.zeros((2, *task.input_shape), dtype=torch.int64 if task.tokens else dtype)
    was_training = module.training
    try:
        with torch.no_grad():
            return module.eval()(probe)
    except Exception as problem:
        raise FedkinError(f"the model does not take inputs of shape {task.input_shape}: {problem}") from problem
    finally:
        module.train(was_training)


def _check_output(output: Any, task: Task) -> None:
    """Refuse what a model puts out for two made-up inputs, so that a mismatch is found before training."""
    if not isinstance(output, Tensor):
        raise FedkinError(
            f"the model puts out a {type(output).__name__}, not a tensor; return the {task.wanted} per input alone"
        )
    n = output.numel() // 2
    if len(output) != 2 or n != task.outputs:
        raise FedkinError(
            f"the model puts out {n} numbers per input, but the task has {task.wanted}; change its last layer"
        )
