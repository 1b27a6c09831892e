"""Adapters: any model as FedRelax sees it. It takes weighted samples, and it gives predictions.

`adapt` finds the adapter: torch modules, Keras 3 models, and everything with `fit` and `predict` in the manner of
scikit-learn. Predictions and targets have one shape for all of them: (n, C), numbers, rates of counts, or the
probabilities of C classes or columns (`Task.linked`). That is what lets a tree and a neural network agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedkin.compute.steps import Optimiser, Rule, step_rule
from fedkin.errors import FedkinError
from fedkin.task import Task


@dataclass(frozen=True)
class Augmented:
    """A client's own samples and what others said: x (n, *input), targets (n, C), weight (n,).

    The first `own` samples are the client's and weigh 1 each, so the loss is (1/own) Σ weight · ℓ; ℓ is the task's loss
    for these, and the discrepancy for the others.
    """

    x: np.ndarray
    targets: np.ndarray
    weight: np.ndarray
    own: int


class Change(Protocol):
    """A change of gradients before a step, as the terms of local training are (`fedkin.local.terms`)."""

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        """Change the gradients (k, P) at the weights (k, P), in place."""


@dataclass(frozen=True)
class FitEffort:
    """How a model is improved: gradient steps for networks; whether duplicates may replace weights for estimators."""

    steps: int = 1
    rate: float = 0.01
    optimiser: Optimiser = "rmsprop"
    smoothing: float = 0.99
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    keep: bool = True
    """Whether moments go on from exchange to exchange."""
    terms: tuple[Change, ...] = ()
    """What clipping and weight decay make of a gradient."""
    discrepancy: str | None = None
    """How far from others' predictions a model is (see `fedkin.task.discrepancy`); None: as the task's loss says."""
    resample: bool = False
    leaves: bool = False
    """Regression trees keep the splits of their first fit: what is said moves the values of their leaves alone."""
    seed: int = 0

    def rule(self, like: Tensor) -> Rule:
        """The step rule for weights like these, (k, P), its moments at zero."""
        return step_rule(self.optimiser, like, self.rate, self.momentum, self.weight_decay, self.smoothing)


class Learner(Protocol):
    """One client's model."""

    refits: bool
    """`improve` starts from nothing (a fit); otherwise it goes on from the present weights (gradient steps)."""
    distils: bool
    """The model is a tree or made of trees: a refit forgets what it said elsewhere, so its own former
    predictions are among the samples of the next."""

    @property
    def model(self) -> Any:
        """The fitted model itself, as the user knows it."""

    def improve(self, samples: Augmented, effort: FitEffort) -> None:
        """(Approximately) minimise the weighted loss."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Numbers or class probabilities, (n, C) float64."""

    def memory(self) -> np.ndarray:
        """All that the next step depends on, as one vector; empty for models that are fitted anew."""

    def recall(self, memory: np.ndarray) -> None:
        """Take up what `memory` gave."""


def is_keras(model: Any) -> bool:
    """Whether a model is a Keras model (without importing Keras; under its torch backend it is an nn.Module too)."""
    return any(kind.__module__.split(".")[0] == "keras" for kind in type(model).__mro__)


def is_model(value: Any) -> bool:
    """Whether a value is a model itself, not a factory of models."""
    return isinstance(value, nn.Module) or (not isinstance(value, type) and hasattr(value, "fit"))


def adapt(client: str, model: Any, task: Task, dtype: torch.dtype, effort: FitEffort) -> Learner:
    """The adapter for a client's model, checked as far as it can be before training."""
    if is_keras(model):
        from fedkin.models.adapters.keras_model import KerasLearner

        return KerasLearner(client, model, task, effort)
    if isinstance(model, nn.Module):
        from fedkin.models.adapters.module import TorchLearner

        return TorchLearner(client, model, task, dtype, effort)
    for needed in ("fit", "predict"):
        if not callable(getattr(model, needed, None)):
            raise FedkinError(
                f"client {client!r}: {type(model).__name__} has no {needed}(); "
                "give an estimator with fit and predict, an nn.Module or a Keras model"
            )
    from fedkin.models.adapters.scikit import ScikitLearner

    return ScikitLearner(client, model, task, effort)


def check_outputs(client: str, outputs: np.ndarray | torch.Tensor, points: int, task: Task) -> None:
    """Refuse a model whose outputs do not have the shape that all clients share."""
    found = int(np.prod(outputs.shape)) // max(points, 1)
    if len(outputs) != points or found != task.outputs:
        raise FedkinError(
            f"client {client!r}: its model puts out {found} numbers per input, but all clients must agree on {task.wanted}; "
            "change its last layer or its targets"
        )
