"""Adapters: torch modules, scikit-learn estimators and Keras models behind one face."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from torch import nn

from fedkin.errors import FedkinError
from fedkin.models.adapters import Augmented, FitEffort, adapt
from fedkin.models.adapters.scikit import systematic, weight_argument
from fedkin.models.estimators import ESTIMATORS, named_estimator
from fedkin.task import Task

NUMBERS = Task("regression", (3,))
CLASSES = Task("classification", (3,), classes=("a", "b", "c"))


def samples(task: Task, n: int = 60, seed: int = 0) -> Augmented:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    if task.kind == "classification":
        targets = np.eye(3)[x.argmax(axis=1)]
    else:
        targets = (x @ [1.0, -2.0, 0.5])[:, None]
    return Augmented(x, targets, np.ones(n), n)


def learner(model: Any, task: Task) -> Any:
    return adapt("ann", model, task, torch.float64, FitEffort())


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("task", [NUMBERS, CLASSES], ids=["numbers", "classes"])
def test_built_in_estimators_learn(name: str, task: Task) -> None:
    given_ = samples(task)
    own = learner(named_estimator(f"{name}:5" if name in ("tree", "forest") else name, task), task)
    own.improve(given_, FitEffort(seed=3))
    said = own.predict(given_.x)
    assert said.shape == given_.targets.shape
    if task.kind == "classification":
        assert np.allclose(said.sum(axis=1), 1)
        assert (said.argmax(axis=1) == given_.targets.argmax(axis=1)).mean() > 0.8
    else:
        assert np.square(said - given_.targets).mean() < 0.5 * given_.targets.var()


def test_weights_count_as_repeated_samples() -> None:
    base = samples(NUMBERS, 12)
    weight = np.arange(12) % 4.0
    for model in (LinearRegression(), make_pipeline(StandardScaler(with_mean=False, with_std=False), Ridge())):
        one, other = learner(model, NUMBERS), learner(model, NUMBERS)
        one.improve(Augmented(base.x, base.targets, weight, 12), FitEffort())
        index = np.repeat(np.arange(12), weight.astype(int))
        other.improve(Augmented(base.x[index], base.targets[index], np.ones(len(index)), 12), FitEffort())
        assert np.allclose(one.predict(base.x), other.predict(base.x))


def test_class_probabilities_are_fitted_as_soft_labels() -> None:
    """Logistic regression on soft labels: the weighted fit on repeated samples, by hand."""
    x = np.random.default_rng(0).normal(size=(40, 3))
    soft = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    own = learner(LogisticRegression(), CLASSES)
    own.improve(Augmented(x, soft, np.full(40, 0.5), 40), FitEffort())
    by_hand = LogisticRegression().fit(np.repeat(x, 3, axis=0), np.tile([0, 1, 2], 40), sample_weight=soft.ravel() / 2)
    assert np.allclose(own.predict(x), by_hand.predict_proba(x), atol=1e-4)


def test_classifiers_without_probabilities_and_with_calibration() -> None:
    given_ = samples(CLASSES)
    hard = learner(LinearSVC(), CLASSES)
    hard.improve(given_, FitEffort())
    assert set(np.unique(hard.predict(given_.x))) == {0.0, 1.0}
    soft = learner(CalibratedClassifierCV(LinearSVC(), cv=2), CLASSES)
    soft.improve(given_, FitEffort())
    assert 0 < soft.predict(given_.x).max() < 1


def test_a_single_class_is_predicted_with_certainty() -> None:
    own = learner(LogisticRegression(), CLASSES)
    own.improve(Augmented(np.zeros((4, 3)), np.eye(3)[[1, 1, 1, 1]], np.ones(4), 4), FitEffort())
    assert np.array_equal(own.predict(np.zeros((2, 3))), np.eye(3)[[1, 1]])


def test_the_users_estimator_is_not_touched_and_the_seed_is_ours() -> None:
    forest = RandomForestRegressor(5)
    own = learner(forest, NUMBERS)
    own.improve(samples(NUMBERS), FitEffort(seed=7))
    assert not hasattr(forest, "estimators_")
    assert forest.random_state is None
    assert own.model.random_state == 7
    fixed = learner(RandomForestRegressor(5, random_state=1), NUMBERS)
    fixed.improve(samples(NUMBERS), FitEffort(seed=7))
    assert fixed.model.random_state == 1


def test_sample_weights_are_found() -> None:
    assert weight_argument(Ridge()) == "sample_weight"
    assert weight_argument(make_pipeline(StandardScaler(), Ridge())) == "ridge__sample_weight"
    assert weight_argument(KNeighborsClassifier()) is None


def test_without_weights_resample_or_refuse() -> None:
    uneven = Augmented(np.zeros((3, 3)), np.eye(3), np.array([1.0, 1.0, 0.2]), 2)
    own = learner(KNeighborsClassifier(1), CLASSES)
    with pytest.raises(FedkinError, match="client 'ann': KNeighborsClassifier takes no sample_weight"):
        own.improve(uneven, FitEffort())
    own.improve(uneven, FitEffort(resample=True))
    assert own.predict(np.zeros((1, 3))).sum() == 1


@given(st.lists(st.floats(0, 5), min_size=1, max_size=20).filter(lambda w: sum(w) > 0.1), st.integers(1, 200))
def test_systematic_resampling_keeps_proportions(weights: list[float], count: int) -> None:
    weight = np.array(weights)
    chosen = systematic(weight, count, np.random.default_rng(0))
    assert len(chosen) == count
    expected = count * weight / weight.sum()
    assert (np.abs(np.bincount(chosen, minlength=len(weight)) - expected) <= 1 + 1e-9).all()


@pytest.mark.parametrize("task", [NUMBERS, CLASSES], ids=["numbers", "classes"])
def test_torch_modules_take_rmsprop_steps(task: Task) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, task.outputs)).double()
    own, effort = learner(module, task), FitEffort(steps=3, rate=0.02, smoothing=0.9, weight_decay=0.1, momentum=0.3)
    data = samples(task)
    weight = np.linspace(0, 2, 60)
    own.improve(Augmented(data.x, data.targets, weight, 30), effort)
    optimiser = torch.optim.RMSprop(module.parameters(), 0.02, alpha=0.9, eps=1e-8, weight_decay=0.1, momentum=0.3)
    x, y = torch.as_tensor(data.x), torch.as_tensor(data.targets)
    for _ in range(3):
        optimiser.zero_grad()
        out = module.train()(x)
        if task.kind == "classification":
            each = -(y * out.log_softmax(dim=1)).sum(dim=1)
        else:
            each = (out - y).square().mean(dim=1)
        ((torch.as_tensor(weight) / 30) * each).sum().backward()
        optimiser.step()
    expected = module.eval()(x)
    expected = expected.softmax(dim=1) if task.kind == "classification" else expected
    assert np.allclose(own.predict(data.x), expected.detach().numpy(), atol=1e-12)

    again = learner(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, task.outputs)), task)
    again.recall(own.memory())
    for model in (own, again):
        model.improve(data, effort)
    assert np.array_equal(own.predict(data.x), again.predict(data.x))


# --- Keras ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras", reason="Keras is an extra: pip install 'fedkin[keras]'")


def test_keras_models_learn_and_come_back(keras: Any) -> None:
    def net(outputs: int, activation: str | None) -> Any:
        layers = [keras.Input((3,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.1)]
        return keras.Sequential([*layers, keras.layers.Dense(outputs, activation=activation)])

    for task, model in ((NUMBERS, net(1, None)), (CLASSES, net(3, "softmax")), (CLASSES, net(3, None))):
        data, effort = samples(task), FitEffort(steps=40, rate=0.05, seed=5)
        before = [np.array(w) for w in model.get_weights()]
        own = learner(model, task)
        own.improve(data, effort)
        said = own.predict(data.x)
        if task.kind == "classification":
            assert np.allclose(said.sum(axis=1), 1, atol=1e-5)
            assert (said.argmax(axis=1) == data.targets.argmax(axis=1)).mean() > 0.7
        else:
            assert np.square(said - data.targets).mean() < 0.4 * data.targets.var()
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights())), "the user's model was changed"
        again = learner(model, task)
        again.recall(own.memory())
        for learned in (own, again):
            learned.improve(data, FitEffort(steps=2, rate=0.02, seed=6))
        assert np.array_equal(own.predict(data.x), again.predict(data.x))


def test_keras_step_is_torchs(keras: Any) -> None:
    """One weighted RMSprop step of a linear Keras model against torch.optim, sample weights included."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.array([[0.3], [-0.2], [0.1]], dtype=np.float32)])
    start = torch.tensor(model.get_weights()[0], requires_grad=True)
    data, weight = samples(NUMBERS, 20), np.linspace(0.1, 1, 20)
    own = adapt("ann", model, NUMBERS, torch.float32, FitEffort(rate=0.05))
    own.improve(Augmented(data.x, data.targets, weight, 10), FitEffort(rate=0.05))
    optimiser = torch.optim.RMSprop([start], 0.05, alpha=0.99, eps=1e-8)
    x, y, w = (torch.as_tensor(part, dtype=torch.float32) for part in (data.x, data.targets, weight))
    ((w / 10)[:, None] * (x @ start - y).square()).sum().backward()
    optimiser.step()
    assert np.allclose(own.model.get_weights()[0], start.detach().numpy(), atol=1e-4)


def test_keras_models_with_wrong_outputs_are_named(keras: Any) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(FedkinError, match="client 'ann': its model puts out 2 numbers per input"):
        learner(model, NUMBERS)
