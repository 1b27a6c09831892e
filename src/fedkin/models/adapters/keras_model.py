"""Keras 3 models as learners (extra `fedkin[keras]`; written for KERAS_BACKEND=torch, other backends go through NumPy)."""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.compute.steps import EPSILON
from fedkin.errors import FedkinError
from fedkin.models.adapters import Augmented, FitEffort, check_outputs
from fedkin.task import Task
from fedkin.task.discrepancy import discrepancy_of
from fedkin.task.losses import loss_of


class KerasLearner:
    """A Keras model, copied before use. A compiled one keeps its own optimiser and loss.

    One that is not compiled gets the method's optimiser (weight decay apart from the gradient, as Keras has it) and the
    task's loss; losses other than cross entropy and squared error are computed by torch. Outputs that are not
    probabilities are taken as logits, those of counts as logarithms of rates.
    """

    refits = False
    distils = False

    def __init__(self, client: str, model: Any, task: Task, effort: FitEffort) -> None:
        self.client, self.task = client, task
        with warnings.catch_warnings():  # an optimiser that has not made a step has nothing to be copied
            warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
            self.keras = copy.deepcopy(model)
        try:
            outputs = self.keras.predict(np.zeros((2, *task.input_shape), dtype=np.float32), verbose=0)
        except Exception as problem:
            raise FedkinError(
                f"client {client!r}: its Keras model does not take inputs of shape {task.input_shape}: {problem}"
            ) from problem
        check_outputs(client, outputs, 2, task)
        self.logits = not _are_chances(outputs.reshape(2, -1), task)
        self.ours, self.own = not self.keras.compiled, 0
        if self.ours:
            self._compile(effort)

    @property
    def model(self) -> Any:
        return self.keras

    def predict(self, x: np.ndarray) -> np.ndarray:
        outputs = np.asarray(self.keras.predict(x.astype(np.float32), verbose=0, batch_size=1024), dtype=np.float64)
        outputs = outputs.reshape(len(x), self.task.outputs)
        return self.task.linked(torch.from_numpy(outputs)).numpy() if self.logits else outputs

    def _compile(self, effort: FitEffort) -> None:
        import keras

        square = EPSILON**2  # Keras adds it below the root
        optimiser = {
            "sgd": partial(keras.optimizers.SGD, momentum=effort.momentum),
            "adam": partial(keras.optimizers.Adam, epsilon=EPSILON),
            "adamw": partial(keras.optimizers.AdamW, epsilon=EPSILON),
            "rmsprop": partial(
                keras.optimizers.RMSprop, rho=effort.smoothing, momentum=effort.momentum, epsilon=square
            ),
        }[effort.optimiser](
            learning_rate=effort.rate,
            weight_decay=effort.weight_decay or (0.0 if effort.optimiser == "adamw" else None),
            global_clipnorm=effort.clip,
        )
        self.keras.compile(optimizer=optimiser, loss=self._loss(effort.discrepancy))

    def _loss(self, discrepancy: str | None) -> Any:
        """The loss of the task for the client's own samples, and the discrepancy for the others, as Keras takes them."""
        import keras

        if self.task.usual and discrepancy in (None, self.task.loss):
            chances = keras.losses.CategoricalCrossentropy(from_logits=self.logits)
            return chances if self.task.classes else keras.losses.MeanSquaredError()
        if keras.config.backend() != "torch":
            raise FedkinError(
                f"client {self.client!r}: loss {self.task.loss!r} is computed by torch; set KERAS_BACKEND=torch"
            )
        of_own, of_others = loss_of(self.task), discrepancy_of(self.task, discrepancy)

        def each(targets: Tensor, outputs: Tensor) -> Tensor:
            outputs, own = outputs.reshape(len(outputs), -1), self.own
            outputs = outputs if self.logits else self.task.unlinked(outputs)
            targets = targets.reshape(outputs.shape)
            mine = of_own(outputs[:own], self.task.firm(targets[:own]))
            return torch.cat([mine, of_others.each(outputs[own:], targets[own:])]) if len(outputs) > own else mine

        return each

    def improve(self, samples: Augmented, effort: FitEffort) -> None:
        self.own = samples.own
        if self.ours:
            for variable in () if effort.keep else self.keras.optimizer.variables:
                variable.assign(variable * 0)
            self.keras.optimizer.learning_rate = effort.rate
        # Keras divides the weighted sum by the number of samples; the loss here is (1/own) Σ weight · ℓ.
        weight = samples.weight * (len(samples.weight) / samples.own)
        targets = samples.targets.reshape(len(samples.targets), *self.keras.output_shape[1:])
        with torch.random.fork_rng(devices=[]):  # under the torch backend dropout draws from torch's own generator
            torch.default_generator.manual_seed(effort.seed)
            for _ in range(effort.steps):
                self.keras.train_on_batch(samples.x.astype(np.float32), targets, sample_weight=weight)

    def _variables(self) -> list[Any]:
        if not self.keras.optimizer.built:
            self.keras.optimizer.build(self.keras.trainable_variables)
        return [*self.keras.variables, *self.keras.optimizer.variables]

    def memory(self) -> np.ndarray:
        from keras import ops

        return np.concatenate([np.ravel(ops.convert_to_numpy(v)).astype(np.float64) for v in self._variables()])

    def recall(self, memory: np.ndarray) -> None:
        start = 0
        for variable in self._variables():
            stop = start + int(np.prod(variable.shape, dtype=int))
            variable.assign(memory[start:stop].reshape(variable.shape).astype(str(variable.dtype)))
            start = stop


def _are_chances(outputs: np.ndarray, task: Task) -> bool:
    """Whether outputs (n, C) are probabilities of classes or columns already; numbers need no reading either."""
    if task.link == "softmax":
        return bool(np.allclose(outputs.sum(axis=1), 1, atol=1e-4) and (outputs >= 0).all())
    return task.link == "identity" or (task.link == "sigmoid" and bool(((outputs > 0) & (outputs < 1)).all()))
