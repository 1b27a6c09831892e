"""ModelSpec: one architecture for all clients, and the way between modules and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError
from fedkin.models.layout import Layout
from fedkin.models.networks import build_network
from fedkin.streams import Streams
from fedkin.task import Task

ModelLike = str | Callable[[], Any] | Mapping[str, Any]


@dataclass(frozen=True)
class ModelSpec:
    """An architecture: how to build it, and the layout of its rows.

    `name` is the spec of a built-in network, or None for a user's own factory.
    """

    factory: Callable[[], nn.Module]
    layout: Layout
    dtype: torch.dtype
    name: str | None = None

    @classmethod
    def of(cls, model: ModelLike, task: Task, dtype: torch.dtype = torch.float32) -> ModelSpec:
        """From the name of a built-in network or a callable that returns an nn.Module."""
        name = model if isinstance(model, str) else None
        if isinstance(model, Mapping):
            raise FedkinError(
                "a model per client (a dict) needs a method that exchanges predictions, not weights: use fedrelax"
            )

        def factory() -> nn.Module:
            return (build_network(model, task) if isinstance(model, str) else model()).to(dtype)

        with torch.random.fork_rng(devices=[]):
            module = factory() if callable(model) or name else None
        if not isinstance(module, nn.Module):
            raise FedkinError(
                "model must be the name of a built-in network or a callable that returns a new nn.Module; "
                f"got {type(model).__name__}"
            )
        _check_output(module, task, dtype)
        return cls(factory, Layout.of(module), dtype, name)

    def template(self) -> nn.Module:
        """A new module whose values do not matter; the global random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            return self.factory()

    def initial_row(self, streams: Streams, index: int = 0) -> Tensor:
        """The common initial weights w₀ (or the `index`-th set of them), shape (B,)."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.integer("init", index))
            return self.layout.pack(self.factory(), self.dtype)

    def initial_counters(self) -> Tensor:
        """The integer buffers at the start, shape (number of counters,)."""
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


def _check_output(module: nn.Module, task: Task, dtype: torch.dtype) -> None:
    """Try the model on two made-up inputs, so that a mismatch is found before training."""
    probe = torch.zeros((2, *task.input_shape), dtype=torch.int64 if task.tokens else dtype)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            was_training = module.training
            output = module.eval()(probe)
            module.train(was_training)
    except Exception as problem:
        raise FedkinError(f"the model does not take inputs of shape {task.input_shape}: {problem}") from problem
    n = output.numel() // 2
    if len(output) != 2 or n != task.outputs:
        raise FedkinError(
            f"the model puts out {n} numbers per input, but the task has {task.wanted}; change its last layer"
        )
