"""A model of its own for every client: estimators, networks, factories. The spec of methods that exchange predictions."""

from __future__ import annotations

import random
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fedkin import plugins
from fedkin.errors import FedkinError, unknown
from fedkin.models.adapters import FitEffort, Learner, adapt, is_keras, is_model
from fedkin.models.layout import Layout
from fedkin.models.networks import NETWORKS, make_network
from fedkin.models.spec import ModelLike, ModelSpec
from fedkin.streams import Streams
from fedkin.task import Task


@dataclass(frozen=True)
class Estimators(ModelSpec):
    """Client → model. Its rows are empty: what such models have in common is their predictions, not their weights."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """Client name → estimator, nn.Module, Keras model, the name of a built-in, or a callable that returns one."""

    @classmethod
    def each(
        cls, given: Mapping[str, Any], names: Sequence[str], task: Task, dtype: torch.dtype, name: str | None = None
    ) -> Estimators:
        """Check that every client has a model that can take part, and no unknown client has one."""
        for client in given:
            if client not in names:
                raise unknown("client in the models", client, names)
        for client in names:
            if client not in given:
                raise FedkinError(f"client {client!r} has no model; the dict of models must name every client")
        spec = cls(nn.Module, Layout((), (), (), ()), dtype, name, given=dict(given))
        for client in names:
            spec.learner(client, task, Streams(0))
        return spec

    def learner(self, client: str, task: Task, streams: Streams, effort: FitEffort | None = None) -> Learner:
        """A new learner for a client; a model made here draws its initial weights from the client's own stream."""
        model = self.given[client]
        with _drawing_from(streams.integer("init", client)):
            model = model if is_model(model) else _made(client, model, task)
            return adapt(client, model, task, self.dtype, effort or FitEffort())


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Torch's generator and Python's (from which Keras draws) start at `seed`, and are put back afterwards."""
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            yield
    finally:
        random.setstate(state)


def _made(client: str, model: Any, task: Task) -> Any:
    if isinstance(model, str):
        return named_estimator(model, task)
    if not callable(model):
        raise FedkinError(
            f"client {client!r}: {type(model).__name__} has no fit(); give an estimator with fit and predict, an "
            "nn.Module, a Keras model, the name of a built-in, or a callable that returns one"
        )
    return model()


def of(model: ModelLike, names: Sequence[str], task: Task, dtype: torch.dtype) -> ModelSpec:
    """One network for all clients (with rows), one estimator for all, or a dict client → model."""
    if isinstance(model, Mapping):
        return Estimators.each(model, names, task, dtype)
    if isinstance(model, str):
        with _drawing_from(0):
            made = named_estimator(model, task)
        if isinstance(made, nn.Module) and not is_keras(made):
            return ModelSpec.of(model, task, dtype)
        return Estimators.each(dict.fromkeys(names, model), names, task, dtype, model)
    if is_model(model):
        return Estimators.each(dict.fromkeys(names, model), names, task, dtype)
    with _drawing_from(0):
        made = model() if callable(model) else None
    if isinstance(made, nn.Module) and not is_keras(made):
        return ModelSpec.of(model, task, dtype)
    return Estimators.each(dict.fromkeys(names, model), names, task, dtype)


ESTIMATORS: dict[str, Callable[[bool, int | None], Any]] = {}


def estimator(name: str) -> Callable[[Callable[[bool, int | None], Any]], Callable[[bool, int | None], Any]]:
    """Register a function (classification?, option) → estimator under a name users can write."""

    def register(make: Callable[[bool, int | None], Any]) -> Callable[[bool, int | None], Any]:
        ESTIMATORS[name] = make
        return make

    return register


def named_estimator(spec: str, task: Task) -> Any:
    """A built-in estimator or network by name: "tree:5", "boosting", "ridge", "mlp:100"."""
    known: Mapping[str, Any] = ChainMap[str, Any](NETWORKS, ESTIMATORS)
    name, option = plugins.split_name("model", spec, known)
    plugins.find("model", name, known)
    if name not in ESTIMATORS:
        return make_network(spec, task, known)
    if option and (not option.isdigit() or int(option) < 1):
        raise FedkinError(f"model {spec!r}: its option must be a whole number of at least 1, as in 'tree:5'")
    return ESTIMATORS[name](task.estimator == "classifier", int(option) if option else None)


@estimator("tree")
def _tree(classification: bool, depth: int | None) -> Any:
    """A decision tree; the option is its depth (5 unless given, as in FedRelax)."""
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    return (DecisionTreeClassifier if classification else DecisionTreeRegressor)(max_depth=depth or 5)


@estimator("forest")
def _forest(classification: bool, trees: int | None) -> Any:
    """A random forest; the option is its number of trees (100)."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    return (RandomForestClassifier if classification else RandomForestRegressor)(n_estimators=trees or 100)


@estimator("boosting")
def _boosting(classification: bool, trees: int | None) -> Any:
    """Gradient-boosted trees; the option is their number (100)."""
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    return (GradientBoostingClassifier if classification else GradientBoostingRegressor)(n_estimators=trees or 100)


@estimator("ridge")
def _ridge(classification: bool, option: int | None) -> Any:
    """Ridge regression, or logistic regression; the option is the inverse strength of the penalty (1)."""
    from sklearn.linear_model import LogisticRegression, Ridge

    strength = float(option or 1)
    return LogisticRegression(C=strength, max_iter=1000) if classification else Ridge(alpha=1 / strength)


@estimator("svm")
def _svm(classification: bool, option: int | None) -> Any:
    """A support vector machine with radial kernel; the option is the penalty C (1). Classes by their votes."""
    from sklearn.svm import SVC, SVR

    return SVC(C=option or 1) if classification else SVR(C=option or 1)
