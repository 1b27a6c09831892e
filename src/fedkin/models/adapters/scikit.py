"""Estimators in the manner of scikit-learn as learners: a new fit on weighted samples at every exchange."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.models.adapters import Augmented, FitEffort, check_outputs
from fedkin.task import Task


class ScikitLearner:
    """An estimator with `fit` and `predict`; the one given is cloned, never fitted itself.

    Classifiers couple what `predict_proba` says; one without it is taken at its word (probability 1 for its answer).
    They are fitted to class probabilities by repeating a sample once per class, weighted by the probability, which is
    the cross entropy with soft labels. A client that has seen a single class predicts that class.
    """

    refits = True

    def __init__(self, client: str, estimator: Any, task: Task) -> None:
        self.client, self.template, self.task = client, estimator, task
        kind = getattr(estimator, "_estimator_type", None) or _declared_type(estimator)
        if kind in ("classifier", "regressor") and kind != ("classifier", "regressor")[task.numeric]:
            wanted = "a classifier" if task.one_label else "a regressor"
            raise FedkinError(
                f"client {client!r}: {type(estimator).__name__} is a {kind}, but the task is {task.kind}; give {wanted}"
            )
        self.weights = weight_argument(estimator)
        self.distils = type(estimator).__module__.startswith(("sklearn.tree", "sklearn.ensemble"))
        self.fitted: Any = None
        self.classes = np.zeros(0, dtype=np.int64)

    @property
    def model(self) -> Any:
        return self.fitted

    def improve(self, samples: Augmented, effort: FitEffort) -> None:
        x, y, weight = samples.x.reshape(len(samples.x), -1), samples.targets, samples.weight
        if self.task.one_label:
            row, y = np.nonzero(y > 0)
            x, weight = x[row], weight[row] * samples.targets[row, y]
        elif y.shape[1] == 1:
            y = y[:, 0]
        keep = weight > 0
        x, y, weight = x[keep], y[keep], weight[keep]
        self.classes = np.unique(y) if self.task.one_label else self.classes
        options: dict[str, np.ndarray] = {}
        if self.weights is not None:
            options = {self.weights: weight}
        elif not np.allclose(weight, 1):
            if not effort.resample:
                raise FedkinError(
                    f"client {self.client!r}: {type(self.template).__name__} takes no sample_weight; "
                    "choose FedRelax(unweighted='resample') to repeat samples in proportion, or another estimator"
                )
            chosen = systematic(weight, len(weight), np.random.default_rng(effort.seed))
            x, y = x[chosen], y[chosen]
            self.classes = np.unique(y) if self.task.one_label else self.classes
        fitted = fresh(self.template, effort.seed)
        if self.task.numeric or len(self.classes) > 1:
            try:
                fitted.fit(x, y, **options)
            except FedkinError:
                raise
            except Exception as problem:
                reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
                raise FedkinError(
                    f"client {self.client!r}: {type(self.template).__name__} cannot be fitted: {reason}"
                ) from problem
            self.classes = np.asarray(getattr(fitted, "classes_", self.classes))
        self.fitted = fitted

    def predict(self, x: np.ndarray) -> np.ndarray:
        flat = x.reshape(len(x), -1)
        if self.task.numeric:
            outputs = np.asarray(self.fitted.predict(flat), dtype=np.float64)
            check_outputs(self.client, outputs, len(x), self.task)
            return outputs.reshape(len(x), self.task.outputs)
        table = np.zeros((len(x), self.task.outputs))
        codes = self.classes.astype(np.int64)
        if len(codes) == 1:
            table[:, codes[0]] = 1
        elif hasattr(self.fitted, "predict_proba"):
            table[:, codes] = self.fitted.predict_proba(flat)
        else:
            table[np.arange(len(x)), np.asarray(self.fitted.predict(flat)).astype(np.int64)] = 1
        return table

    def memory(self) -> np.ndarray:
        return np.zeros(0)

    def recall(self, memory: np.ndarray) -> None:
        """Nothing: the fit is repeated instead."""


def _declared_type(estimator: Any) -> str | None:
    """What an estimator says it is, by scikit-learn's tags; None where it says nothing."""
    from sklearn.utils import get_tags

    try:
        return get_tags(estimator).estimator_type
    except Exception:  # whatever is not a scikit-learn estimator has no tags
        return None


def weight_argument(estimator: Any) -> str | None:
    """The name under which `fit` takes sample weights: of a pipeline, its last step's; None where it takes none."""
    parameters = inspect.signature(estimator.fit).parameters
    if "sample_weight" in parameters:
        return "sample_weight"
    steps = getattr(estimator, "steps", None)
    if steps and weight_argument(steps[-1][1]) is not None:
        return f"{steps[-1][0]}__{weight_argument(steps[-1][1])}"
    return None


def fresh(estimator: Any, seed: int) -> Any:
    """An unfitted copy; where the user left random_state open, it is set from the run's own stream."""
    if not hasattr(estimator, "get_params"):
        return copy.deepcopy(estimator)
    from sklearn.base import clone

    copied = clone(estimator)
    settings = copied.get_params(deep=True)
    open_ = [key for key, value in settings.items() if key.split("__")[-1] == "random_state" and value is None]
    return copied.set_params(**dict.fromkeys(open_, seed % 2**31)) if open_ else copied


def systematic(weight: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` indices drawn in proportion to the weights by systematic resampling.

    Sample i comes up ⌊count·w_i/Σw⌋ or one more times, so duplicates stand in for weights with little noise.
    """
    ticks = (np.arange(count) + rng.random()) / count
    return np.minimum(np.searchsorted(np.cumsum(weight) / weight.sum(), ticks, side="right"), len(weight) - 1)
