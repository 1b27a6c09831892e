"""Torch modules as learners: full-batch steps on the weighted loss, by any step rule and list of gradient terms."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.compute.steps import Rule
from fedkin.errors import FedkinError
from fedkin.models.adapters import Augmented, FitEffort, check_outputs
from fedkin.task import Task
from fedkin.task.discrepancy import discrepancy_of
from fedkin.task.losses import loss_of


class TorchLearner:
    """An nn.Module that puts out numbers (n, …) or logits (n, C). The module given is copied, never changed."""

    refits = False
    distils = False

    def __init__(self, client: str, module: nn.Module, task: Task, dtype: torch.dtype, effort: FitEffort) -> None:
        self.client, self.task, self.dtype = client, task, dtype
        self.loss, self.discrepancy = loss_of(task), discrepancy_of(task, effort.discrepancy)
        self.module = copy.deepcopy(module).to(dtype).eval()
        try:
            outputs = self._forward(np.zeros((2, *task.input_shape)))
        except Exception as problem:
            raise FedkinError(
                f"client {client!r}: its model does not take inputs of shape {task.input_shape}: {problem}"
            ) from problem
        check_outputs(client, outputs, 2, task)
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        self.rule: Rule = effort.rule(self._weights())

    @property
    def model(self) -> Any:
        return self.module.eval()

    def _weights(self) -> Tensor:
        """What is trained, as one row (1, P)."""
        return torch.cat([p.detach().reshape(-1) for p in self.trained])[None]

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.as_tensor(x, dtype=torch.int64 if self.task.tokens else self.dtype)

    def _forward(self, x: np.ndarray) -> Tensor:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return self.module.eval()(self._tensor(x))

    def predict(self, x: np.ndarray) -> np.ndarray:
        outputs = self._forward(x).double().reshape(len(x), self.task.outputs)
        return self.task.linked(outputs).numpy()

    def improve(self, samples: Augmented, effort: FitEffort) -> None:
        own, x, targets = samples.own, self._tensor(samples.x), torch.as_tensor(samples.targets, dtype=self.dtype)
        weight, mine = torch.as_tensor(samples.weight / own, dtype=self.dtype), self.task.firm(targets[:own])
        self.rule = self.rule if effort.keep else effort.rule(self._weights())
        self.rule.rate = effort.rate
        self.module.train(len(x) > 1)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(effort.seed)
            for _ in range(effort.steps):
                outputs = self.module(x).reshape(len(x), -1)
                each = self.loss(outputs[:own], mine)
                if len(x) > own:
                    each = torch.cat([each, self.discrepancy.each(outputs[own:], targets[own:])])
                self._step(torch.autograd.grad((weight * each).sum(), self.trained, allow_unused=True), effort)

    def _step(self, slopes: tuple[Tensor | None, ...], effort: FitEffort) -> None:
        """One step of the rule; what has no gradient stays as it is."""
        weights = self._weights()
        parts = [torch.zeros_like(p) if slope is None else slope for p, slope in zip(self.trained, slopes)]
        row = torch.cat([part.reshape(-1) for part in parts])[None]
        for term in effort.terms:
            term.add(row, weights)
        self.rule.step(weights, row)
        with torch.no_grad():
            moved = weights[0].split([p.numel() for p in self.trained])
            for parameter, value, slope in zip(self.trained, moved, slopes):
                if slope is not None:
                    parameter.copy_(value.view_as(parameter))

    def _parts(self) -> list[Tensor]:
        return [*self.module.state_dict().values(), *self.rule.state.values()]

    def memory(self) -> np.ndarray:
        return np.concatenate([part.detach().double().reshape(-1).numpy() for part in self._parts()])

    def recall(self, memory: np.ndarray) -> None:
        start = 0
        with torch.no_grad():
            for part in self._parts():
                stop = start + part.numel()
                part.copy_(torch.from_numpy(memory[start:stop]).reshape(part.shape))
                start = stop
