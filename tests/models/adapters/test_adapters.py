"""Adapters: torch modules, scikit-learn estimators and Keras models behind one face."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    SGDRegressor,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor
from torch import nn

from fedkin.errors import FedkinError
from fedkin.local.terms import Clip, Decay
from fedkin.models.adapters import Augmented, FitEffort, adapt
from fedkin.models.adapters.scikit import systematic, weight_argument
from fedkin.models.estimators import ESTIMATORS, named_estimator
from fedkin.task import Task
from fedkin.task.losses import loss_of

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


def learner(model: Any, task: Task, effort: FitEffort | None = None) -> Any:
    return adapt("ann", model, task, torch.float64, effort or FitEffort())


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
    effort = FitEffort(steps=3, rate=0.02, smoothing=0.9, momentum=0.3, terms=(Decay(0.1),))
    own, data = learner(module, task, effort), samples(task)
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

    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, task.outputs))
    again = learner(other, task, effort)
    again.recall(own.memory())
    for model in (own, again):
        model.improve(data, effort)
    assert np.array_equal(own.predict(data.x), again.predict(data.x))


def counts(n: int = 60) -> Augmented:
    """Counts whose rate falls with the first input: the client's own, and rates that somebody else told."""
    x = np.random.default_rng(1).normal(size=(n, 3))
    rates = np.exp(1 - x[:, :1])
    own = n // 2
    return Augmented(x, np.concatenate([np.round(rates[:own]), rates[own:]]), np.linspace(0.5, 1, n), own)


LEARNED: dict[str, tuple[Task, Augmented]] = {
    "focal": (Task("classification", (3,), classes=("a", "b", "c"), loss="focal:2"), samples(CLASSES)),
    "weighted": (
        Task("classification", (3,), classes=("a", "b", "c"), class_weight=(1.0, 3.0, 0.5), label_smoothing=0.1),
        samples(CLASSES),
    ),
    "huber": (Task("regression", (3,), loss="huber:0.5"), samples(NUMBERS)),
    "poisson": (Task("regression", (3,), loss="poisson"), counts()),
    "bce": (
        Task("multilabel", (3,), output_shape=(2,), class_weight=(1.0, 4.0)),
        Augmented(samples(NUMBERS).x, (samples(NUMBERS).x[:, :2] > 0).astype(float), np.ones(60), 40),
    ),
}


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize("what", LEARNED)
def test_torch_modules_take_any_loss_and_optimiser(what: str, optimiser: Any) -> None:
    """The client's own samples by the task's loss, the others by the discrepancy, against a plain loop of torch.optim."""
    task, data = LEARNED[what]
    data = Augmented(data.x, data.targets, data.weight, 30)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, task.outputs)).double()
    effort = FitEffort(steps=4, rate=0.02, optimiser=optimiser, clip=0.3, terms=(Clip(0.3),))
    own = learner(module, task, effort)
    own.improve(data, effort)
    makes = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}[optimiser]
    more = {"weight_decay": 0.0} if optimiser == "adamw" else {}
    theirs = getattr(torch.optim, makes)(module.parameters(), lr=0.02, **more)
    x, y, weight = (torch.as_tensor(part) for part in (data.x, data.targets, data.weight))
    functional = nn.functional
    for _ in range(4):
        out = module(x)
        mine, hers = out[:30], out[30:]
        labels, said = y[:30].argmax(dim=1), y[30:]
        apart = -(said * hers.log_softmax(dim=1)).sum(dim=1)
        if what == "focal":
            sure = mine.log_softmax(dim=1).gather(1, labels[:, None])[:, 0]
            each = -((1 - sure.exp()) ** 2) * sure
        elif what == "weighted":
            heavy = torch.tensor(task.class_weight, dtype=torch.float64)
            each = functional.cross_entropy(mine, labels, weight=heavy, label_smoothing=0.1, reduction="none")
        elif what == "huber":
            each = functional.huber_loss(mine, y[:30], reduction="none", delta=0.5)[:, 0]
            apart = functional.huber_loss(hers, said, reduction="none", delta=0.5)[:, 0]
        elif what == "poisson":
            each, apart = (mine.exp() - y[:30] * mine)[:, 0], (hers.exp() - said * hers)[:, 0]
        else:
            heavy = torch.tensor(task.class_weight, dtype=torch.float64)
            entropy = functional.binary_cross_entropy_with_logits
            each = entropy(mine, y[:30], pos_weight=heavy, reduction="none").mean(dim=1)
            apart = entropy(hers, said, reduction="none").mean(dim=1)
        theirs.zero_grad()
        (weight / 30 * torch.cat([each, apart])).sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.3)
        theirs.step()
    assert np.allclose(own.predict(data.x), task.linked(module(x)).detach().numpy(), atol=1e-10)


@pytest.mark.parametrize("what", ["weighted", "bce"])
def test_class_weights_and_smoothing_are_sample_weights_of_estimators(what: str) -> None:
    """Logistic regression without a penalty minimises the task's own loss: no step of it makes that loss smaller."""
    task, data = LEARNED[what]
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random((60, 1)) < 0.3, rng.permutation(data.targets), data.targets)
    own = learner(LogisticRegression(C=1e6, max_iter=5000, tol=1e-8), task)
    own.improve(Augmented(data.x, noisy, np.ones(60), 60), FitEffort())
    linear = nn.Linear(3, task.outputs).double()
    outputs = task.unlinked(torch.from_numpy(own.predict(data.x)))
    targets = task.firm(torch.from_numpy(noisy))
    best = float(loss_of(task)(outputs, targets).mean())
    search = torch.optim.LBFGS(linear.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        search.zero_grad()
        loss = loss_of(task)(linear(torch.from_numpy(data.x)), targets).mean()
        loss.backward()
        return loss

    search.step(closure)
    assert best == pytest.approx(float(closure().detach()), abs=1e-4)
    if task.one_label:
        assert np.allclose(own.predict(data.x), own.model.predict_proba(data.x))
    else:
        assert own.model.predict(data.x).shape == noisy.shape


@pytest.mark.parametrize(
    ("loss", "model", "setting"),
    [
        ("mae", DecisionTreeRegressor(), {"criterion": "absolute_error"}),
        ("mae", HistGradientBoostingRegressor(), {"loss": "absolute_error"}),
        ("quantile:0.9", GradientBoostingRegressor(), {"loss": "quantile", "alpha": 0.9}),
        ("quantile:0.9", HistGradientBoostingRegressor(), {"loss": "quantile", "quantile": 0.9}),
        ("quantile:0.9", make_pipeline(StandardScaler(), QuantileRegressor()), {"quantileregressor__quantile": 0.9}),
        ("poisson", RandomForestRegressor(3), {"criterion": "poisson"}),
        ("poisson", PoissonRegressor(), {}),
        ("huber:0.3", SGDRegressor(), {"loss": "huber", "epsilon": 0.3}),
    ],
)
def test_estimators_are_told_the_loss_where_they_have_it(loss: str, model: Any, setting: dict[str, Any]) -> None:
    own = learner(model, Task("regression", (3,), loss=loss))
    own.improve(counts(), FitEffort())
    found = own.model.get_params()
    assert {key: found[key] for key in setting} == setting


@pytest.mark.parametrize(
    ("task", "model", "says"),
    [
        (
            Task("regression", (3,), loss="mae"),
            Ridge(),
            "Ridge is fitted by a criterion of its own and cannot minimise loss",
        ),
        (Task("regression", (3,), loss="quantile:0.9"), SGDRegressor(), "cannot minimise loss 'quantile:0.9'"),
        (LEARNED["focal"][0], LogisticRegression(), "cannot minimise loss 'focal:2'; give the client a network"),
    ],
)
def test_estimators_without_the_loss_are_refused(task: Task, model: Any, says: str) -> None:
    with pytest.raises(FedkinError, match=f"client 'ann': .*{says}") as refused:
        learner(model, task)
    assert "\n" not in str(refused.value)


def test_estimators_have_no_other_discrepancy() -> None:
    with pytest.raises(FedkinError, match=r"client 'ann': Ridge .* discrepancy 'mae' takes a network"):
        learner(Ridge(), NUMBERS, FitEffort(discrepancy="mae"))


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


@pytest.mark.parametrize(("what", "optimiser"), zip(LEARNED, ["sgd", "adam", "adamw", "rmsprop", "adam"]))
def test_keras_takes_any_loss_and_optimiser_as_torch_does(keras: Any, what: str, optimiser: Any) -> None:
    """Three steps of a linear Keras model against those of the same torch module."""
    task, data = LEARNED[what]
    data = Augmented(data.x, data.targets, data.weight, 30)
    start = np.random.default_rng(2).normal(size=(3, task.outputs)).astype(np.float32)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(task.outputs, use_bias=False)])
    model.set_weights([start])
    module = nn.Linear(3, task.outputs, bias=False)
    module.weight.data = torch.from_numpy(start.T.copy())
    effort = FitEffort(steps=3, rate=0.02, optimiser=optimiser, clip=0.3, terms=(Clip(0.3),), keep=False)
    said = []
    for each in (model, module):
        own = adapt("ann", each, task, torch.float32, effort)
        for _ in range(2):
            own.improve(data, effort)
        said.append(own.predict(data.x))
    assert np.allclose(*said, atol=2e-4)


def test_keras_models_with_wrong_outputs_are_named(keras: Any) -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(FedkinError, match="client 'ann': its model puts out 2 numbers per input"):
        learner(model, NUMBERS)
