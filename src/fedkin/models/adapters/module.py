"""Torch modules as learners: full-batch RMSprop steps on the weighted loss."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkin import steps
from fedkin.errors import FedkinError
from fedkin.models.adapters import Augmented, FitEffort, check_outputs
from fedkin.task import Task
from fedkin.task.losses import loss_of


def rmsprop_step(weights: Tensor, gradient: Tensor, square: Tensor, velocity: Tensor, effort: FitEffort) -> None:
    """One step of RMSprop in place (`fedkin.steps`), after weight decay g ← g + λw."""
    gradient = gradient.add(weights, alpha=effort.weight_decay) if effort.weight_decay else gradient
    steps.rmsprop(weights, gradient, square, velocity, effort.rate, effort.smoothing, effort.momentum)


class TorchLearner:
    """An nn.Module that puts out numbers (n, …) or logits (n, C). The module given is copied, never changed."""

    refits = False
    distils = False

    def __init__(self, client: str, module: nn.Module, task: Task, dtype: torch.dtype) -> None:
        self.client, self.task, self.dtype = client, task, dtype
        self.module = copy.deepcopy(module).to(dtype).eval()
        try:
            outputs = self._forward(np.zeros((2, *task.input_shape)))
        except Exception as problem:
            raise FedkinError(
                f"client {client!r}: its model does not take inputs of shape {task.input_shape}: {problem}"
            ) from problem
        check_outputs(client, outputs, 2, task)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        self.squares = [torch.zeros_like(p) for p in self.trained]
        self.velocities = [torch.zeros_like(p) for p in self.trained]

    @property
    def model(self) -> Any:
        return self.module.eval()

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.as_tensor(x, dtype=torch.int64 if self.task.tokens else self.dtype)

    def _forward(self, x: np.ndarray) -> Tensor:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return self.module.eval()(self._tensor(x))

    def predict(self, x: np.ndarray) -> np.ndarray:
        outputs = self._forward(x).double().reshape(len(x), self.task.outputs)
        if self.task.one_label:
            outputs = outputs.softmax(dim=1)
        return outputs.numpy()

    def improve(self, samples: Augmented, effort: FitEffort) -> None:
        x, targets = self._tensor(samples.x), torch.as_tensor(samples.targets, dtype=self.dtype)
        weight = torch.as_tensor(samples.weight / samples.own, dtype=self.dtype)
        self.module.train(len(x) > 1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(effort.seed)
            for _ in range(effort.steps):
                loss = (weight * loss_of(self.task)(self.module(x), targets)).sum()
                gradients = torch.autograd.grad(loss, self.trained, allow_unused=True)
                with torch.no_grad():
                    for parameter, gradient, square, velocity in zip(
                        self.trained, gradients, self.squares, self.velocities
                    ):
                        if gradient is not None:
                            rmsprop_step(parameter, gradient, square, velocity, effort)

    def _parts(self) -> list[Tensor]:
        return [*self.module.state_dict().values(), *self.squares, *self.velocities]

    def memory(self) -> np.ndarray:
        return np.concatenate([part.detach().double().reshape(-1).numpy() for part in self._parts()])

    def recall(self, memory: np.ndarray) -> None:
        start = 0
        with torch.no_grad():
            for part in self._parts():
                stop = start + part.numel()
                part.copy_(torch.from_numpy(memory[start:stop]).reshape(part.shape))
                start = stop
