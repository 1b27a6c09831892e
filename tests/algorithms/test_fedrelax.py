"""FedRelax: its limits, closed forms, options, and what it refuses."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import Tensor, nn

import fedkin
from fedkin import ClientGraph, Federation, FedkinError, Result, data
from fedkin.algorithms import FedRelax
from fedkin.graphs import complete
from fedkin.run import Callback, Run
from fedkin.testing.algorithms import SCATTERED


def clusters(clients: int = 6, dimension: int = 3, noise: float = 0.1, public: int = 20, **options: Any) -> Federation:
    settings = {"clusters": 2, "samples": 10, "held_out": 20, "seed": 0, **options}
    return data.load("clusters", clients=clients, dimension=dimension, noise=noise, public=public, **settings)


def train(federation: Federation, model: Any = "linear", rounds: int = 3, **parameters: Any) -> Result:
    graph = parameters.pop("graph", None)
    run = {
        key: parameters.pop(key) for key in ("out", "seed", "cohort", "checkpoint_every", "engine") if key in parameters
    }
    return fedkin.train(federation, model, FedRelax(**parameters), graph, rounds=rounds, dtype="float64", **run)


def blobs(seed: int = 0, clients: int = 4) -> Federation:
    rng = np.random.default_rng(seed)
    sites = {}
    for k in range(clients):
        y = np.arange(30) % 3
        sites[f"site-{k}"] = (np.eye(3, 4)[y] * 2 + rng.normal(size=(30, 4)), y)
    return Federation.from_arrays(sites)


def exact_by_hand(federation: Federation, weights: np.ndarray, alpha: float, block: bool = False) -> np.ndarray:
    """One exact update, client by client, by weighted least squares on the augmented samples."""
    assert federation.graph is not None
    assert federation.public is not None
    adjacency = federation.graph.adjacency.toarray()
    updated = []
    for i in range(len(federation)):
        x, y = federation.train[i]
        parts = [(x, y, np.full(len(x), 1.0))]
        for j in np.flatnonzero(adjacency[i]):
            p = federation.public[federation.names[j]]
            parts.append((p, p @ weights[j], np.full(len(p), alpha * adjacency[i, j] * len(x) / len(p))))
            if block:
                q = federation.public[federation.names[i]]
                parts.append((q, q @ weights[j], np.full(len(q), alpha * adjacency[i, j] * len(x) / len(q))))
        xs, ys, ws = (np.concatenate([part[c] for part in parts]) for c in range(3))
        updated.append(LinearRegression(fit_intercept=False).fit(xs, ys, sample_weight=ws).coef_)
    return np.array(updated)


def stepped_by_hand(federation: Federation, weights: np.ndarray, alpha: float, rate: float = 0.01) -> np.ndarray:
    """One full-batch gradient step of every client on its own samples and what all its neighbours say."""
    assert federation.graph is not None
    assert federation.public is not None
    moved = []
    for i, row in enumerate(weights):
        x, y = federation.train[i]
        slope = 2 * x.T @ (x @ row - y.ravel()) / len(x)
        for j in np.flatnonzero(federation.graph.adjacency.toarray()[i]):
            p = federation.public[federation.names[j]]
            slope += alpha * federation.graph.adjacency[i, j] * 2 * p.T @ (p @ (row - weights[j])) / len(p)
        moved.append(row - rate * slope)
    return np.array(moved)


# --- limits and closed forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [False, True])
def test_exact_update_is_weighted_least_squares(block: bool) -> None:
    federation = clusters()
    start = train(federation, rounds=0).rows
    one = exact_by_hand(federation, start, 0.3, block)
    two = exact_by_hand(federation, one, 0.3, block)
    found = train(federation, rounds=2, alpha=0.3, update="exact", exact_block=block).rows
    assert np.allclose(found, two, atol=1e-9)


def test_sleepers_are_heard_with_their_last_predictions() -> None:
    """A cohort of three of six: those who sleep keep their models, and what these say counts for those who are awake."""
    federation = clusters()
    for models in ("linear", lambda: nn.Linear(3, 1, bias=False)):
        rows = train(federation, models, rounds=0).rows
        for round in (1, 2, 3):
            exact = {"update": "exact"} if models == "linear" else {"inner_steps": 1, "optimiser": "sgd"}
            found = train(federation, models, rounds=round, cohort=3, alpha=0.3, **exact).rows
            awake = (found != rows).any(axis=1)
            assert awake.sum() == 3 or (models == "linear" and round > 1)  # who hears the same again stays
            if models == "linear":
                np.testing.assert_allclose(found[awake], exact_by_hand(federation, rows, 0.3)[awake], atol=1e-9)
            else:
                np.testing.assert_allclose(found[awake], stepped_by_hand(federation, rows, 0.3)[awake], atol=1e-12)
            np.testing.assert_array_equal(found[~awake], rows[~awake])
            rows = found
        apart = train(federation, models, rounds=3, cohort=3, alpha=0.3, engine=SCATTERED, **exact)
        np.testing.assert_allclose(apart.rows, rows, atol=1e-13)


def test_an_estimator_hears_estimators_that_sleep() -> None:
    federation = clusters(clients=4)
    graph = complete(federation.names)
    assert federation.public is not None
    alone = train(federation, Ridge(0.1), graph=graph, alpha=0.0, rounds=0)
    found = train(federation, Ridge(0.1), graph=graph, alpha=0.5, rounds=1, cohort=2)
    quiet = train(federation, Ridge(0.1), graph=graph, alpha=0.5, rounds=1, cohort=2, sleepers="silent")
    probe = np.random.default_rng(0).normal(size=(200, 3))
    first = {name: alone.models[name] for name in federation.names}
    awake = [n for n in federation.names if not np.array_equal(found.models[n].predict(probe), first[n].predict(probe))]
    assert len(awake) == 2
    for name in awake:
        i = federation.names.index(name)
        x, y = federation.train[i]
        heard = [(federation.public[other], first[other]) for other in federation.names if other != name]
        xs = np.concatenate([x, *(p for p, _ in heard)])
        ys = np.concatenate([y.ravel(), *(model.predict(p) for p, model in heard)])
        ws = np.concatenate([np.ones(len(x)), *(np.full(len(p), 0.5 * len(x) / len(p)) for p, _ in heard)])
        by_hand = Ridge(0.1).fit(xs, ys, sample_weight=ws)
        np.testing.assert_allclose(found.models[name].predict(probe), by_hand.predict(probe), atol=1e-9)
        assert not np.allclose(quiet.models[name].predict(probe), by_hand.predict(probe))
    sent = found.letters()["messages"].sum() - quiet.letters()["messages"].sum()
    assert sent == 2 * 2  # two who are awake hear two who sleep


def test_incremental_trees_keep_their_splits(tmp_path: Path) -> None:
    """Leaves at weighted means of what falls into them, round by round, by a loop over leaves; splits of the tree alone."""
    federation = clusters(clients=4)
    graph = complete(federation.names, 0.5)
    assert federation.public is not None
    first = train(federation, "tree:3", graph=graph, alpha=0.0, rounds=0).models
    found = train(federation, "tree:3", graph=graph, alpha=0.7, rounds=3, trees="leaves", out=tmp_path / "run")
    said = {name: first[name].predict(federation.public[name]) for name in federation.names}
    value: dict[str, dict[int, float]] = {}
    for _ in range(3):
        value = {}
        for i, name in enumerate(federation.names):
            x, y = federation.train[i]
            own: dict[int, float] = {}
            for leaf in np.unique(first[name].apply(x)):
                inside = first[name].apply(x) == leaf
                top, bottom = float(y.ravel()[inside].sum()), float(inside.sum())
                for other in federation.names:
                    if other != name:
                        p = federation.public[other]
                        hit = first[name].apply(p) == leaf
                        each = 0.7 * 0.5 * len(x) / len(p)
                        top, bottom = top + each * said[other][hit].sum(), bottom + each * hit.sum()
                own[int(leaf)] = top / bottom
            value[name] = own
        said = {
            name: np.array([value[name][leaf] for leaf in first[name].apply(federation.public[name])])
            for name in federation.names
        }
    for name in federation.names:
        np.testing.assert_array_equal(found.models[name].tree_.threshold, first[name].tree_.threshold)
        for leaf, number in value[name].items():
            assert found.models[name].tree_.value[leaf, 0, 0] == pytest.approx(number, abs=1e-9)
    objective = [record["log"]["objective"] for record in found.history if "objective" in record["log"]]
    assert objective == sorted(objective, reverse=True)
    later = fedkin.resume(tmp_path / "run", federation, "tree:3", rounds=5)
    straight = train(federation, "tree:3", graph=graph, alpha=0.7, rounds=5, trees="leaves")
    for name in federation.names:
        np.testing.assert_array_equal(later.models[name].tree_.value, straight.models[name].tree_.value)
    with pytest.raises(FedkinError, match=r"client 'node-00': trees = 'leaves' moves .* not of RandomForestRegressor"):
        train(federation, "forest:3", graph=graph, trees="leaves")


def test_linear_estimators_agree_with_the_closed_form() -> None:
    federation = clusters()
    estimators = dict.fromkeys(federation.names, LinearRegression(fit_intercept=False))
    fitted = train(federation, estimators, rounds=1, alpha=0.3)
    alone = np.array([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in federation.train])
    by_hand = exact_by_hand(federation, alone, 0.3)
    assert np.allclose([fitted.models[name].coef_ for name in federation.names], by_hand, atol=1e-9)


def test_without_coupling_everyone_is_alone() -> None:
    federation = clusters()
    exact = train(federation, alpha=0.0, update="exact", rounds=2).rows
    assert np.allclose(exact, [np.linalg.lstsq(x, y, rcond=None)[0] for x, y in federation.train], atol=1e-9)
    trees = train(federation, "tree:5", alpha=0.0, rounds=2)
    for k, name in enumerate(federation.names):
        x, y = federation.train[k]
        points = federation.test[k][0]
        own = DecisionTreeRegressor(max_depth=5, random_state=trees.models[name].random_state).fit(x, y)
        assert np.array_equal(trees.models[name].predict(points), own.predict(points))
    apart = train(federation, alpha=0.7, graph="empty").rows
    assert np.allclose(apart, train(federation, alpha=0.0).rows)


def test_gradient_steps_are_those_of_torch() -> None:
    federation = clusters()
    start = torch.tensor(train(federation, rounds=0).rows)
    found = train(
        federation, alpha=0.0, rounds=4, inner_steps=1, weight_decay=0.1, momentum=0.5, lr=0.02, smoothing=0.9
    ).rows
    for k in range(len(federation)):
        w = start[k].clone().requires_grad_()
        settings = {"lr": 0.02, "alpha": 0.9, "eps": 1e-8, "weight_decay": 0.1, "momentum": 0.5}
        optimiser = torch.optim.RMSprop([w], **settings)  # type: ignore[arg-type]
        x, y = (torch.as_tensor(part) for part in federation.train[k])
        for _ in range(4):
            optimiser.zero_grad()
            (x @ w - y).square().mean().backward()
            optimiser.step()
        assert np.allclose(found[k], w.detach().numpy(), atol=1e-10)


def test_strong_coupling_on_a_connected_graph_is_consensus() -> None:
    federation = clusters(clients=5, dimension=2)
    result = train(federation, alpha=1e4, update="exact", rounds=60, graph=complete(federation.names))
    assert np.abs(result.rows - result.rows.mean(axis=0)).max() < 1e-3
    loose = train(federation, alpha=1e-3, update="exact", rounds=60, graph=complete(federation.names)).rows
    assert np.abs(loose - loose.mean(axis=0)).max() > 0.1


def test_inner_steps_lead_to_the_exact_update() -> None:
    federation = clusters()
    exact = train(federation, alpha=0.2, update="exact", rounds=30)
    steps = train(federation, alpha=0.2, rounds=30, inner_steps=200, lr=0.002)
    assert np.allclose(steps.rows, exact.rows, atol=0.02)
    assert steps.history[-1]["log"]["objective"] == pytest.approx(exact.history[-1]["log"]["objective"], rel=0.01)


def test_stacked_linear_models_agree_with_learners() -> None:
    """The batched path against one torch module per client, with a bias, uneven public sets and both weightings."""
    federation = clusters()
    assert federation.public is not None
    uneven = {name: x[: 5 + 3 * k] for k, (name, x) in enumerate(federation.public.items())}
    federation = dataclasses.replace(federation, public=uneven)

    def made() -> nn.Module:
        return nn.Linear(3, 1)

    for parameters in ({}, {"weight": "alpha"}, {"exact_block": True}, {"exact_block": True, "weight": "alpha"}):
        stacked = train(federation, made, alpha=0.4, inner_steps=3, **parameters)
        apart = train(federation, dict.fromkeys(federation.names, made), alpha=0.4, inner_steps=3, **parameters)
        assert stacked.rows.shape == apart.rows.shape == (6, 4)
        assert np.allclose(stacked.rows, apart.rows, atol=1e-10)
        for mine, theirs in zip(stacked.history, apart.history):
            for term in ("objective", "local_loss", "variation"):
                assert mine["log"][term] == pytest.approx(theirs["log"][term], rel=1e-9)


def test_common_set_and_exact_block_double_the_coupling() -> None:
    federation = clusters()
    shown = np.random.default_rng(1).normal(size=(12, 3))
    federation = dataclasses.replace(federation, public={"*": shown})
    for model in ("linear", dict.fromkeys(federation.names, LinearRegression(fit_intercept=False))):
        blocks = train(federation, model, alpha=0.2, exact_block=True, update="exact")
        double = train(federation, model, alpha=0.4, update="exact")
        same = [blocks.metrics["post"]["test_mse"], double.metrics["post"]["test_mse"]]
        assert np.allclose(*same, atol=1e-9)


def test_objective_is_what_it_says() -> None:
    federation = clusters()
    assert federation.graph is not None
    assert federation.public is not None
    before = train(federation, rounds=1, alpha=0.3).rows
    log = train(federation, rounds=2, alpha=0.3).history[1]["log"]
    loss = sum(np.square(x @ w - y).mean() for (x, y), w in zip(federation.train, before))
    edges = federation.graph.adjacency.tocoo()
    apart = 0.0
    for i, j, weight in zip(edges.row, edges.col, edges.data):
        apart += weight * np.square(federation.public[federation.names[j]] @ (before[i] - before[j])).mean()
    assert log["local_loss"] == pytest.approx(loss)
    assert log["variation"] == pytest.approx(apart)
    assert log["objective"] == pytest.approx(loss + 0.3 * apart)


def test_stops_when_the_objective_stops_falling() -> None:
    federation = clusters()
    result = train(federation, alpha=0.2, update="exact", rounds=200, tolerance=1e-6)
    assert 3 < len(result.history) < 200
    values = [record["log"]["objective"] for record in result.history]
    assert values[-2] - values[-1] < 1e-6 * values[-2]
    assert values[-3] - values[-2] >= 1e-6 * values[-3]


# --- any loss, discrepancy and optimiser ------------------------------------------------------------------------------


def cubed(mine: Tensor, said: Tensor) -> Tensor:
    """A discrepancy of one's own."""
    return (mine - said).abs().pow(3).mean(dim=1)


def constant(mine: Tensor, said: Tensor) -> Tensor:
    return (mine + said).square().mean(dim=1)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize(
    ("loss", "discrepancy", "optimiser"),
    [
        ("huber:0.3", None, "adam"),
        ("mae", "mse", "sgd"),
        ("mse", f"{__name__}:cubed", "adamw"),
        ("mse", "mae", "rmsprop"),
    ],
)
def test_a_round_is_one_step_of_torch_on_loss_and_discrepancy(
    loss: str, discrepancy: str | None, optimiser: Any, common: bool
) -> None:
    """Linear models, one step: L_i by the task's loss, α Σ_j A_ij δ_ij by the discrepancy, one neighbour after the other."""
    federation = clusters(clients=4)
    if common:
        federation = dataclasses.replace(federation, public={"*": np.random.default_rng(1).normal(size=(7, 3))})
    settings = {"alpha": 0.4, "inner_steps": 1, "optimiser": optimiser, "lr": 0.02, "discrepancy": discrepancy}

    def run(rounds: int) -> np.ndarray:
        return fedkin.train(federation, "linear", FedRelax(**settings), rounds=rounds, dtype="float64", loss=loss).rows

    start, found = torch.tensor(run(0)), run(1)
    functions = {"mse": nn.functional.mse_loss, "mae": nn.functional.l1_loss}
    functions["huber:0.3"] = partial(nn.functional.huber_loss, delta=0.3)
    apart = functions.get(discrepancy or loss, lambda a, b: (a - b).abs().pow(3).mean())
    assert federation.graph is not None
    assert federation.public is not None
    for i, (x, y) in enumerate(federation.train):
        w = start[i].clone().requires_grad_()
        makes = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}[optimiser]
        step = getattr(torch.optim, makes)([w], lr=0.02, **({"weight_decay": 0} if optimiser == "adamw" else {}))
        objective = functions[loss](torch.as_tensor(x) @ w, torch.as_tensor(y))
        weights = federation.graph.adjacency.toarray()[i]
        for j in np.flatnonzero(weights):
            points = torch.as_tensor(federation.public["*" if common else federation.names[j]])
            objective = objective + 0.4 * weights[j] * apart(points @ w, points @ start[j])
        objective.backward()
        step.step()
        assert np.allclose(found[i], w.detach().numpy(), atol=1e-10)


def test_trees_and_networks_share_a_loss() -> None:
    """Counts by their Poisson rate: a tree, a forest and networks agree on rates."""
    rng = np.random.default_rng(0)
    sites = {}
    for k in range(4):
        x = rng.uniform(-1, 1, size=(300, 3))
        sites[f"site-{k}"] = (x, rng.poisson(np.exp(1 + x[:, 0])))
    federation = Federation.from_arrays(sites, task="counts")
    models = dict(zip(federation.names, ("tree:3", "forest:5", "mlp:8", lambda: nn.Linear(3, 1))))
    how = {"rounds": 4, "graph": complete(federation.names), "metrics": ["mae", "r2"]}
    result = fedkin.train(federation, models, FedRelax(alpha=0.1, inner_steps=20, optimiser="adam", lr=0.05), **how)
    assert result.models["site-0"].criterion == "poisson"
    assert (np.array(result.metrics["deployed"]["test_r2"]) > 0.1).all()
    log = [record["log"]["objective"] for record in result.history]
    assert log[-1] < log[0]


def test_several_labels_at_once_of_networks_and_estimators() -> None:
    rng = np.random.default_rng(0)
    sites = {}
    for k in range(3):
        x = rng.normal(size=(60, 3))
        sites[f"site-{k}"] = (x, (x[:, :2] + 0.3 * rng.normal(size=(60, 2)) > 0).astype(int))
    federation = Federation.from_arrays(sites, task="multilabel")
    models = dict(zip(federation.names, ("tree:3", "ridge", "mlp:8")))
    method = FedRelax(alpha=0.1, inner_steps=30, lr=0.05)
    how: dict[str, Any] = {"graph": complete(federation.names), "rounds": 3, "class_weight": "balanced"}
    result = fedkin.train(federation, models, method, metrics=["auroc", "accuracy"], **how)
    assert (np.array(result.metrics["deployed"]["test_auroc"]) > 0.85).all()
    assert result.models["site-0"].predict_proba(np.zeros((2, 3))).shape == (2, 2)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"discrepancy": "maee"}, "unknown loss 'maee'; did you mean 'mae'"),
        (
            {"discrepancy": "cross-entropy"},
            "'cross-entropy' does not read a regression task's predictions; choose one of: ",
        ),
        (
            {"discrepancy": "focal:2"},
            "'focal:2' is not least where both agree; choose one of: huber, mae, mse, quantile",
        ),
        ({"discrepancy": f"{__name__}:constant"}, "constant' is not least where both predictions agree"),
        ({"discrepancy": "os:getcwd"}, "discrepancy 'os:getcwd' fails on predictions"),
        ({"discrepancy": "mae", "exact_block": True}, "exact_block = true hears the mean of what neighbours say"),
        ({"discrepancy": "mae", "update": "exact"}, "for all clients .model='linear'. with squared errors"),
    ],
)
def test_discrepancies_that_do_not_fit_are_refused(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(FedkinError, match=says) as refused:
        train(clusters(), **parameters)
    assert "\n" not in str(refused.value)


# --- mixed models -----------------------------------------------------------------------------------------------------


def mixed(federation: Federation) -> dict[str, Any]:
    kinds = [DecisionTreeRegressor(max_depth=3), "boosting:5", SVR(), "mlp:4", lambda: nn.Linear(3, 1), "ridge"]
    return dict(zip(federation.names, kinds))


def test_any_models_in_one_federation() -> None:
    federation = clusters()
    result = train(federation, mixed(federation), alpha=0.1)
    assert [type(model).__name__ for model in result.models.values()] == [
        *("DecisionTreeRegressor", "GradientBoostingRegressor", "SVR", "Sequential", "Linear", "Ridge")
    ]
    assert result.rows.shape == (6, 0)
    objective = [record["log"]["objective"] for record in result.history]
    assert objective[-1] < objective[0]
    for k, name in enumerate(federation.names):
        x, y = federation.test[k]
        model = result.models[name]
        said = model(torch.as_tensor(x)).detach().numpy().ravel() if isinstance(model, nn.Module) else model.predict(x)
        assert np.square(said - y).mean() == pytest.approx(result.metrics["deployed"]["test_mse"][k], rel=1e-6)


def test_order_of_clients_does_not_matter() -> None:
    federation = clusters()
    order = [4, 2, 0, 5, 1, 3]
    straight = train(federation, mixed(federation), alpha=0.1, exact_block=True, cohort=4)
    shuffled = train(federation.take(order), mixed(federation), alpha=0.1, exact_block=True, cohort=4)
    mine = np.array(shuffled.metrics["post"]["test_mse"])
    assert np.allclose(mine, np.array(straight.metrics["post"]["test_mse"])[order], rtol=1e-9)


class LosesItsModels(Callback):
    """After the first round all clients' processes are new ones, as an engine has them that starts hosts anew."""

    def on_round(self, run: Run, record: Any) -> bool:
        if record["round"] == 1:
            run.clients.shard.objects.clear()  # type: ignore[attr-defined]
        return False


@pytest.mark.parametrize("parameters", [{}, {"exact_block": True}, {"common": True, "public": "drawn"}])
def test_a_host_that_forgot_is_reminded_without_a_bill(parameters: dict[str, Any]) -> None:
    federation = clusters()
    whole, reminded = (
        fedkin.train(federation, mixed(federation), FedRelax(alpha=0.1, **parameters), rounds=3, callbacks=callbacks)
        for callbacks in ((), (LosesItsModels(),))
    )
    assert repr(reminded.metrics) == repr(whole.metrics)
    assert [record["bytes"] for record in reminded.history] == [record["bytes"] for record in whole.history]
    assert reminded.facts["messages"] == whole.facts["messages"]


@pytest.mark.parametrize("parameters", [{}, {"exact_block": True}, {"common": True, "public": "drawn"}])
def test_resumes_as_if_never_stopped(parameters: dict[str, Any], tmp_path: Path) -> None:
    """Networks come back with their weights; trees and other estimators repeat their last fit."""
    federation = clusters()
    models = mixed(federation)
    common = {"alpha": 0.1, "checkpoint_every": 1, "cohort": 4, **parameters}
    whole = train(federation, models, rounds=4, out=tmp_path / "whole", **common)
    train(federation, models, rounds=2, out=tmp_path / "part", **common)
    resumed = fedkin.resume(tmp_path / "part", federation, models, rounds=4)
    assert repr(resumed.metrics) == repr(whole.metrics)
    assert resumed.history[-1]["bytes"] == whole.history[-1]["bytes"]
    again = fedkin.resume(tmp_path / "whole", federation, models)
    x = federation.test[0][0]
    assert np.array_equal(again.models["node-00"].predict(x), whole.models["node-00"].predict(x))
    loaded = fedkin.load(tmp_path / "whole")
    assert repr(loaded.metrics) == repr(whole.metrics)
    assert np.array_equal(loaded.models["node-00"].predict(x), whole.models["node-00"].predict(x))


def test_classes_are_coupled_by_their_probabilities() -> None:
    federation = blobs()
    models = {"site-0": "tree:3", "site-1": LogisticRegression(), "site-2": "svm", "site-3": "mlp:8"}
    result = train(federation, models, rounds=10, alpha=0.5, inner_steps=5)
    assert result.summary()["mean"] > 0.6
    assert result.history[-1]["log"]["variation"] < result.history[0]["log"]["variation"]
    table = result.models["site-0"].predict_proba(federation.test[0][0])
    guess = result.models["site-0"].classes_[table.argmax(axis=1)]
    assert (guess == federation.test[0][1]).mean() == result.metrics["deployed"]["test_accuracy"][0]


def test_a_client_learns_classes_it_has_never_seen() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = np.eye(3)[y] * 5 + rng.normal(size=(60, 3)) * 0.1
    sites = {"all": {"train": (x, y), "test": (x, y)}, "one": {"train": (x[y == 0], y[y == 0]), "test": (x, y)}}
    federation = Federation.from_arrays(sites)
    graph = complete(federation.names)
    alone = train(federation, "ridge", alpha=0.0, graph=graph)
    helped = train(federation, "ridge", alpha=1.0, graph=graph)
    assert alone.metrics["deployed"]["test_accuracy"] == [1.0, pytest.approx(1 / 3)]
    assert helped.metrics["deployed"]["test_accuracy"] == [1.0, 1.0]


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "base"),
    [
        ({"distil": 10}, {}),
        ({"distil": 0}, {}),
        ({"distil_weight": 5.0}, {}),
        ({"distil_from": "data"}, {}),
        ({"weight": "alpha"}, {}),
        ({"exact_block": True}, {}),
        ({"public": "normal:0,3"}, {}),
        ({"public": "uniform"}, {}),
        ({"public": "drawn"}, {}),
        ({"public_size": 5}, {"public": "drawn"}),
        ({"common": True}, {"public": "normal"}),
        ({"common": True}, {"public": "drawn"}),
    ],
)
def test_every_option_acts_on_trees(changes: dict[str, Any], base: dict[str, Any]) -> None:
    federation = clusters()
    first = train(federation, "tree:3", rounds=2, alpha=0.5, **base)
    second = train(federation, "tree:3", rounds=2, alpha=0.5, **base, **changes)
    assert first.metrics["post"]["test_mse"] != second.metrics["post"]["test_mse"]


def test_estimators_without_weights_are_a_clear_choice() -> None:
    federation = clusters()
    neighbours = dict.fromkeys(federation.names, KNeighborsRegressor(3))
    with pytest.raises(FedkinError, match=r"client 'node-00': KNeighborsRegressor takes no sample_weight; choose"):
        train(federation, neighbours, alpha=0.5)
    assert train(federation, neighbours, alpha=0.0).summary()["mean"] > 0
    resampled = train(federation, neighbours, alpha=0.5, unweighted="resample")
    assert resampled.metrics["post"]["test_mse"] != train(federation, neighbours, alpha=0.0).metrics["post"]["test_mse"]


def test_letters_are_predictions_and_are_counted() -> None:
    federation = clusters()
    result = train(federation, rounds=3, alpha=0.1)
    assert federation.graph is not None
    edges = federation.graph.adjacency.nnz
    points, predictions = 20 * 3 * 8, 20 * 8
    assert result.facts["bytes"] == edges * (points + 3 * predictions)
    assert result.facts["messages"] == edges * 4
    sent = result.letters()
    assert (sent["bytes"] == points + 3 * predictions).all()
    shared = dataclasses.replace(federation, public={"*": np.zeros((4, 3))})
    assert train(shared, rounds=3).facts["bytes"] == edges * 3 * 4 * 8


# --- bad input --------------------------------------------------------------------------------------------------------


class NoPredict:
    def fit(self, x: np.ndarray, y: np.ndarray) -> None: ...


@pytest.mark.parametrize(
    ("models", "says"),
    [
        ({"node-02": object()}, r"client 'node-02': object has no fit\(\)"),
        ({"node-02": NoPredict()}, r"client 'node-02': NoPredict has no predict\(\)"),
        ({"node-01": nn.Linear(3, 2)}, "client 'node-01': its model puts out 2 numbers per input, but all clients"),
        ({"node-01": nn.Linear(4, 1)}, r"client 'node-01': its model does not take inputs of shape \(3,\)"),
        (
            {"node-01": DecisionTreeClassifier()},
            "client 'node-01': DecisionTreeClassifier is a classifier, but the task",
        ),
        ({"node-01": "treee"}, "unknown model 'treee'; did you mean 'tree'"),
        ({"node-01": "tree:x"}, "model 'tree:x': its option must be a whole number"),
        ({"node-09": "tree"}, "unknown client in the models 'node-09'"),
    ],
)
def test_models_that_cannot_take_part_are_named(models: dict[str, Any], says: str) -> None:
    federation = clusters()
    with pytest.raises(FedkinError, match=says):
        train(federation, {**dict.fromkeys(federation.names, Ridge()), **models})


def test_a_client_without_model_is_named() -> None:
    federation = clusters()
    with pytest.raises(FedkinError, match="client 'node-05' has no model"):
        train(federation, dict.fromkeys(federation.names[:-1], Ridge()))


def test_targets_an_estimator_cannot_take_are_found_before_training() -> None:
    rng = np.random.default_rng(0)
    sites = {f"s{k}": (rng.normal(size=(20, 3)), rng.normal(size=(20, 2))) for k in range(3)}
    federation = Federation.from_arrays(sites)
    with pytest.raises(FedkinError, match="client 's1': SVR cannot be fitted"):
        train(federation, {"s0": Ridge(), "s1": SVR(), "s2": Ridge()})
    assert train(federation, "tree", rounds=1).summary()["mean"] > 0


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"alpha": -1}, "fedrelax: alpha = -1 is not allowed"),
        ({"alpha": float("nan")}, "alpha = nan is not allowed"),
        ({"public": "normall"}, "unknown source of public points 'normall'; did you mean 'normal'"),
        ({"public": "normal:1,0"}, "is not understood; write normal:mean,std"),
        ({"update": "newton"}, "update = 'newton' is not allowed"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(FedkinError, match=says):
        FedRelax(**parameters)


def test_public_points_must_fit() -> None:
    sites = {name: (np.zeros((8, 3)), np.zeros(8)) for name in ("a", "b")}
    with pytest.raises(FedkinError, match=r"client 'b': its public set has inputs of shape \(2,\)"):
        Federation.from_arrays(sites, public={"a": np.zeros((4, 3)), "b": np.zeros((4, 2))})
    federation = Federation.from_arrays(sites, public={"a": np.zeros((4, 3))})
    with pytest.raises(FedkinError, match="client 'b' has no public points"):
        train(federation, "linear", graph=complete(federation.names))
    wrong = dataclasses.replace(federation, public={"a": np.zeros((4, 3)), "b": np.zeros((4, 2))})
    with pytest.raises(FedkinError, match=r"client 'b': its public points have shape \(4, 2\)"):
        train(wrong, "linear", graph=complete(federation.names))


def test_exact_updates_need_linear_models_or_estimators() -> None:
    federation = clusters()
    with pytest.raises(FedkinError, match="client 'node-00': update='exact' needs"):
        train(federation, "mlp:4", update="exact")
    with pytest.raises(FedkinError, match="client 'node-03': update='exact' needs"):
        train(federation, {**dict.fromkeys(federation.names, Ridge()), "node-03": "mlp:4"}, update="exact")


def test_other_methods_refuse_a_model_per_client() -> None:
    federation = clusters()
    with pytest.raises(FedkinError, match="use fedrelax"):
        fedkin.train(federation, dict.fromkeys(federation.names, Ridge()), "fedavg", rounds=1)


def test_an_isolated_client_is_left_alone() -> None:
    federation = clusters(clients=3)
    graph = ClientGraph([[0, 1, 0], [1, 0, 0], [0, 0, 0]], names=federation.names)
    coupled = train(federation, "tree:4", alpha=1.0, graph=graph)
    alone = train(federation, "tree:4", alpha=0.0, graph=graph)
    mine, theirs = coupled.metrics["post"]["test_mse"], alone.metrics["post"]["test_mse"]
    assert mine[2] == theirs[2]
    assert mine[0] != theirs[0]


def test_the_tolerance_compares_turns_of_all_clients_also_under_sampling() -> None:
    """Sums over different cohorts go up and down by themselves and used to end such runs after 2 to 4 rounds."""
    federation = clusters(clients=12)
    whole = train(federation, alpha=0.05, lr=0.05, inner_steps=1, rounds=60)
    sampled = train(federation, alpha=0.05, lr=0.05, inner_steps=1, rounds=60, cohort=6, tolerance=1e-6)
    assert sampled.facts["rounds"] > 20
    assert sampled.summary()["mean"] < 2 * whole.summary()["mean"] + 0.2
