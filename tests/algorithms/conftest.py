"""A small uneven federation, and the plain loops the methods are checked against: one nn.Module at a time, float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin.algorithm import Algorithm, Setting, State
from fedkin.clients import Replies
from fedkin.federation import Federation
from fedkin.local.batches import plan_batches
from fedkin.local.sgd import Sgd
from fedkin.models import ModelSpec
from fedkin.run import Run, make_run
from fedkin.run.options import make_options
from fedkin.streams import Streams, client_keys
from fedkin.task.losses import loss_of

SEED = 4


def make_federation(sizes: tuple[int, ...] = (26, 11, 18, 9), kind: str = "classification") -> Federation:
    rng = np.random.default_rng(1)
    clients = {}
    for k, n in enumerate(sizes):
        x = rng.normal(size=(n, 5)) + (k % 2)
        if kind == "classification":
            y: Any = np.concatenate([np.arange(3), (x[3:, 0] * (-1) ** k > 0).astype(int) + (x[3:, 1] > 0)])[:n]
        else:
            y = x @ rng.normal(size=5)
        clients[f"site-{k}"] = (x, y)
    classes = [0, 1, 2] if kind == "classification" else None
    return Federation.from_arrays(
        clients, classes=classes, test_fraction=0.25, truth={"cluster": np.arange(len(sizes)) % 2}
    )


class Plain:
    """What a reader of the paper would write. It shares the initial weights and the batches with fedkin, nothing else."""

    def __init__(self, federation: Federation, model: str) -> None:
        self.federation, self.streams = federation, Streams(SEED)
        self.spec = ModelSpec.of(model, federation.task, torch.float64)
        self.keys = client_keys(federation.names)
        self.sizes = federation.train.sizes
        self.initial = self.spec.initial_row(self.streams)

    def words(self, k: int, round: int, purpose: str = "batches") -> np.ndarray:
        return self.streams.words(purpose, round, self.keys[k : k + 1])

    def batches(self, k: int, settings: Sgd, round: int, purpose: str = "batches") -> list[tuple[Tensor, Tensor]]:
        x, y = self.federation.train[k]
        how = settings.batch_size, settings.epochs, settings.steps, torch.float64
        plan = plan_batches(self.words(k, round, purpose), self.sizes[k : k + 1], np.zeros(1, dtype=int), *how)
        chosen = [plan.index[0, s][plan.weight[0, s] > 0] for s in range(int(plan.steps[0]))]
        target = torch.as_tensor(y) if self.federation.task.kind == "classification" else torch.as_tensor(y).double()
        return [(torch.as_tensor(x, dtype=torch.float64)[i], target[i]) for i in chosen]

    def loss(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss as a differentiable function of a row."""
        module = self.spec.template().train()
        values = {s.name: row[s.start : s.stop].view(s.shape) for s in self.spec.layout.slots}
        outputs = torch.func.functional_call(module, values, (x,))
        return loss_of(self.federation.task)(outputs, y).mean()

    def gradient(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """∇f by autograd through an ordinary module's parameters."""
        module: nn.Module = self.spec.module(row).train()
        loss_of(self.federation.task)(module(x), y).mean().backward()
        return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


def finished(federation: Federation, model: Any, algorithm: Algorithm, graph: Any = None, **options: Any) -> Run:
    """A run after its last round, to look into."""
    settings = {"rounds": 2, "seed": SEED, "dtype": "float64", **options}
    run = make_run(federation, model, algorithm, make_options(**settings), graph)
    run.run()
    return run


def watching_rounds(method: type[Algorithm]) -> Any:
    """The method, which keeps what came in and went out of every round in `seen`."""

    class Watched(method):  # type: ignore[misc, valid-type]
        name: ClassVar[str] = ""
        seen: ClassVar[list[tuple[State, Replies, State]]] = []

        def couple(self, state: State, replies: Replies, setting: Setting) -> State:
            after = super().couple(state, replies, setting)
            self.seen.append((state, replies, after))
            return after

    return Watched


@pytest.fixture
def watching() -> Callable[[type[Algorithm]], Any]:
    return watching_rounds


@pytest.fixture
def federation() -> Federation:
    return make_federation()


@pytest.fixture
def plain(federation: Federation) -> Plain:
    return Plain(federation, "mlp:4")


@pytest.fixture
def run() -> Callable[..., Run]:
    return finished


@pytest.fixture
def build() -> Callable[..., Federation]:
    return make_federation


def models_of(run: Run, when: str = "post") -> Tensor:
    """The clients' whole models after the last round, (K, B)."""
    return run.final[when]["model"]


@pytest.fixture
def models() -> Callable[..., Tensor]:
    return models_of
