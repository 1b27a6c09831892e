"""Keras 3 models as learners (extra `fedkin[keras]`; written for KERAS_BACKEND=torch, other backends go through NumPy)."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch

from fedkin.errors import FedkinError
from fedkin.models.adapters import Augmented, FitEffort, check_outputs
from fedkin.task import Task


class KerasLearner:
    """A Keras model, copied before use. A compiled one keeps its own optimiser and loss.

    One that is not compiled gets RMSprop with the method's rate and smoothing, and the squared error or the cross
    entropy. Outputs that are not probabilities are taken as logits.
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
        sums = outputs.reshape(2, -1).sum(axis=1)
        self.logits = task.one_label and not (np.allclose(sums, 1, atol=1e-4) and (outputs >= 0).all())
        self.ours = not self.keras.compiled
        if self.ours:
            self._compile(effort)

    @property
    def model(self) -> Any:
        return self.keras

    def predict(self, x: np.ndarray) -> np.ndarray:
        outputs = np.asarray(self.keras.predict(x.astype(np.float32), verbose=0, batch_size=1024), dtype=np.float64)
        outputs = outputs.reshape(len(x), self.task.outputs)
        if self.logits:
            outputs = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            outputs /= outputs.sum(axis=1, keepdims=True)
        return outputs

    def _compile(self, effort: FitEffort) -> None:
        import keras

        loss = (
            keras.losses.CategoricalCrossentropy(from_logits=self.logits)
            if self.task.one_label
            else keras.losses.MeanSquaredError()
        )
        optimiser = keras.optimizers.RMSprop(
            effort.rate,
            rho=effort.smoothing,
            momentum=effort.momentum,
            epsilon=1e-8,
            weight_decay=effort.weight_decay or None,
        )
        self.keras.compile(optimizer=optimiser, loss=loss)

    def improve(self, samples: Augmented, effort: FitEffort) -> None:
        if self.ours:
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
