"""Estimators in the manner of scikit-learn as learners: a new fit on weighted samples at every exchange."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.models.adapters import Augmented, FitEffort, check_outputs
from fedkin.models.adapters.criteria import minimising
from fedkin.task import Task


class ScikitLearner:
    """An estimator with `fit` and `predict`; the one given is cloned, never fitted itself.

    Classifiers couple what `predict_proba` says; one without it is taken at its word (probability 1 for its answer).
    They are fitted to class probabilities by repeating a sample once per class, weighted by the probability, which is
    the cross entropy with soft labels; of multi-label tasks, one estimator per column. A client that has seen a single
    class predicts that class.
    """

    refits = True

    def __init__(self, client: str, estimator: Any, task: Task, effort: FitEffort) -> None:
        self.client, self.task = client, task
        kind = getattr(estimator, "_estimator_type", None) or _declared_type(estimator)
        if kind in ("classifier", "regressor") and kind != task.estimator:
            raise FedkinError(
                f"client {client!r}: {type(estimator).__name__} is a {kind}, but the task is {task.kind}; give a {task.estimator}"
            )
        self.template = minimising(client, estimator, task, effort.discrepancy)
        self.weights = weight_argument(estimator)
        made_of_trees = type(estimator).__module__.startswith(("sklearn.tree", "sklearn.ensemble"))
        self.keeps_splits = effort.leaves and made_of_trees
        if self.keeps_splits:
            refuse_leaves(client, self.template)
        self.distils = made_of_trees and not effort.leaves
        self.parts: list[Classifier] = []
        self.fitted: Any = None

    @property
    def model(self) -> Any:
        return self.fitted

    def improve(self, samples: Augmented, effort: FitEffort) -> None:
        x, y, weight = samples.x.reshape(len(samples.x), -1), samples.targets, samples.weight
        if self.task.estimator == "regressor":
            keep = weight > 0
            if self.keeps_splits and self.fitted is not None:
                move_leaves(self.fitted, x[keep], y[keep], weight[keep])
                return
            self.fitted = self._fit(x[keep], y[keep, 0] if y.shape[1] == 1 else y[keep], weight[keep], effort)
            return
        self.parts = [self._classifier(x, pairs, effort) for pairs in pair_weights(samples, self.task)]
        self.fitted = self.parts[0].fitted if self.task.classes else PerColumn(self.parts)

    def _classifier(self, x: np.ndarray, pairs: np.ndarray, effort: FitEffort) -> Classifier:
        """A fit to every sample with every class, by the weights (n, C) of these pairs."""
        row, y = np.nonzero(pairs > 0)
        return Classifier(self._fit(x[row], y, pairs[row, y], effort), np.unique(y), pairs.shape[1])

    def _fit(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray, effort: FitEffort) -> Any:
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
        fitted = fresh(self.template, effort.seed)
        if self.task.estimator == "classifier" and len(np.unique(y)) == 1:
            return fitted  # a single class is predicted without it
        try:
            return fitted.fit(x, y, **options)
        except FedkinError:
            raise
        except Exception as problem:
            reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
            raise FedkinError(
                f"client {self.client!r}: {type(self.template).__name__} cannot be fitted: {reason}"
            ) from problem

    def predict(self, x: np.ndarray) -> np.ndarray:
        flat = x.reshape(len(x), -1)
        if self.task.estimator == "classifier":
            return self.parts[0].chances(flat) if self.task.classes else self.fitted.predict_proba(flat)
        outputs = np.asarray(self.fitted.predict(flat), dtype=np.float64)
        check_outputs(self.client, outputs, len(x), self.task)
        return outputs.reshape(len(x), self.task.outputs)

    def memory(self) -> np.ndarray:
        return np.zeros(0)

    def recall(self, memory: np.ndarray) -> None:
        """Nothing: the fit is repeated instead."""


@dataclass(frozen=True)
class Classifier:
    """A fitted classifier and the classes that it has seen, of so many."""

    fitted: Any
    seen: np.ndarray
    classes: int

    def chances(self, x: np.ndarray) -> np.ndarray:
        """The probability of every class, (n, C)."""
        table = np.zeros((len(x), self.classes))
        codes = np.asarray(getattr(self.fitted, "classes_", self.seen)).astype(np.int64)
        if len(codes) == 1:
            table[:, codes[0]] = 1
        elif hasattr(self.fitted, "predict_proba"):
            table[:, codes] = self.fitted.predict_proba(x)
        else:
            table[np.arange(len(x)), np.asarray(self.fitted.predict(x)).astype(np.int64)] = 1
        return table


@dataclass(frozen=True)
class PerColumn:
    """The model of a multi-label task: a classifier of every 0/1 column."""

    columns: Sequence[Classifier]

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """The probability of a one in every column, (n, C)."""
        return np.stack([column.chances(x)[:, 1] for column in self.columns], axis=1)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Zeros and ones, (n, C)."""
        return (self.predict_proba(x) > 0.5).astype(np.int64)


def refuse_leaves(client: str, estimator: Any) -> None:
    """Leaves can be moved in a single regression tree of squared errors, whose leaf is the mean of its samples."""
    from sklearn.tree import DecisionTreeRegressor

    if not isinstance(estimator, DecisionTreeRegressor) or estimator.criterion != "squared_error":
        raise FedkinError(
            f"client {client!r}: trees = 'leaves' moves the leaves of a DecisionTreeRegressor with squared errors, not of "
            f"{type(estimator).__name__}; use trees = 'refit'"
        )


def move_leaves(tree: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
    """Put every leaf, in place, at the weighted mean of the samples x (n, d), y (n, C), weight (n,) that fall into it.

    The splits stay, so that the tree is linear in its leaves and this is the exact minimiser of the weighted squared error.
    A leaf that nothing falls into stays where it is.
    """
    leaf, value = tree.apply(x), tree.tree_.value
    total = np.bincount(leaf, weight, minlength=len(value))
    there = total > 0
    for column in range(y.shape[1]):
        said = np.bincount(leaf, weight * y[:, column], minlength=len(value))
        value[there, column, 0] = said[there] / total[there]


def pair_weights(samples: Augmented, task: Task) -> Iterator[np.ndarray]:
    """How much every sample counts with every class, (n, C); of multi-label tasks (n, 2) for one column after the other.

    A client's own labels are smoothed and weighted as the loss says; what others said is taken as it is.
    """
    own = (np.arange(len(samples.x)) < samples.own)[:, None]
    weight, smooth = samples.weight[:, None], task.label_smoothing * own
    heavy = np.where(own, task.class_weight or np.ones(task.outputs), 1.0)
    if task.classes:
        yield (samples.targets * (1 - smooth) + smooth / task.outputs) * heavy * weight
        return
    ones = samples.targets * (1 - smooth) + smooth / 2
    for c in range(task.outputs):
        yield np.stack([1 - ones[:, c], ones[:, c] * heavy[:, c]], axis=1) * weight


def held_bytes(model: Any) -> int:
    """Bytes of the arrays that a fitted estimator holds: what travels with it. What it keeps outside of NumPy does not count."""
    seen: dict[int, Any] = {}

    def inside(part: Any) -> int:
        if id(part) in seen:
            return 0
        seen[id(part)] = part  # kept, so that no other part gets its number
        if isinstance(part, np.ndarray):
            return sum(map(inside, part.ravel())) if part.dtype == object else part.nbytes
        if isinstance(part, dict | list | tuple):
            return sum(map(inside, part.values() if isinstance(part, dict) else part))
        if hasattr(part, "__dict__"):
            return inside(vars(part)) if type(part).__module__ != "builtins" and not isinstance(part, type) else 0
        return inside(part.__getstate__())  # scikit-learn's trees

    return inside(model)


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
