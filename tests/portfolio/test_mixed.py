"""auto for models that share no weights: a forest here, a ridge regression there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn
from typer.testing import CliRunner

import fedkin
from fedkin import Federation, FedkinError
from fedkin.algorithms.kin import candidates
from fedkin.cli import app
from fedkin.models.adapters.scikit import held_bytes
from fedkin.portfolio.mixed_join import nearest_to
from fedkin.result.blended import cautious

from .conftest import sites


def models(federation: Federation) -> dict[str, Any]:
    """Linear models and small forests in turn, two by two, so that both of two contrary kinds have both."""
    classes = bool(federation.task.classes)
    linear = LogisticRegression() if classes else Ridge()
    forest = (RandomForestClassifier if classes else RandomForestRegressor)(8)
    return {name: linear if k % 4 < 2 else forest for k, name in enumerate(federation.names)}


@pytest.mark.parametrize("regression", [False, True])
def test_mixed_models_are_better_together_and_survive_saving(tmp_path: Path, regression: bool) -> None:
    federation = sites(clients=8, samples=50, regression=regression)
    result = fedkin.auto(federation, models(federation), "quick", out=tmp_path / "run")
    alone = np.mean(result.facts["alone"][result.metric])
    together = result.summary("deployed")["mean"]
    assert together < 0.5 * alone if regression else together > alone + 0.02
    assert set(result.auto) == set(federation.names)
    assert result.kin.sum(axis=1) == pytest.approx(1)
    assert result.kin[0, 1::2].sum() < 0.2  # the others are of the contrary kind
    again = fedkin.load(tmp_path / "run")
    x = federation.test[0][0]
    for name in federation.names:
        assert np.array_equal(result.models[name].predict(x), again.models[name].predict(x))
    told = fedkin.predict(again, federation.names[0], pd.DataFrame(x))
    if not regression:
        chances = result.models[federation.names[0]].predict_proba(x)
        assert told["probability"].to_numpy() == pytest.approx(chances.max(axis=1), abs=1e-6)
    assert result.report(tmp_path / "page.html").stat().st_size
    with pytest.raises(FedkinError, match="already holds a result"):
        fedkin.auto(federation, models(federation), "quick", out=tmp_path / "run")


def test_the_same_seed_gives_the_same_models_and_test_samples_choose_nothing() -> None:
    federation = sites(clients=6, samples=40)
    clients = {
        name: {"train": federation.train[k], "test": (x, 1 - y)}
        for k, (name, (x, y)) in enumerate(zip(federation.names, federation.test))
    }
    other = Federation.from_arrays(clients, classes=[0, 1])
    one, two = (fedkin.auto(of, models(of), "quick", seed=3) for of in (federation, other))
    assert torch.equal(one.extras["blend_weights"], two.extras["blend_weights"])
    x = federation.test[0][0]
    assert np.array_equal(one.models["site-5"].predict_proba(x), two.models["site-5"].predict_proba(x))


def test_clients_with_one_class_or_one_sample_take_part() -> None:
    usual = sites(clients=5, samples=40)
    clients: dict[str, Any] = {n: {"train": usual.train[k], "test": usual.test[k]} for k, n in enumerate(usual.names)}
    x = np.random.default_rng(0).normal(size=(9, 6))
    clients["always"] = {"train": (x, np.zeros(9, dtype=int)), "test": (x, np.zeros(9, dtype=int))}
    clients["tiny"] = {"train": (x[:1], np.array([1])), "test": (x, np.arange(9) % 2)}
    result = fedkin.auto(Federation.from_arrays(clients, classes=[0, 1]), "ridge")
    assert np.isfinite(result.metrics["deployed"]["test_accuracy"]).all()
    assert result.auto["tiny"]["samples"] == 0


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("forest:3", {"lr": 0.1}, "lr is for networks"),
        ("forest:3", {"distil": True}, "distils networks"),
        ("forest:3", {"engine": "ray"}, "in one process"),
        ({f"site-{k}": nn.Linear(6, 2) for k in range(4)}, {}, "client 'site-0': auto mixes estimators"),
        ({"site-0": Ridge()}, {}, "client 'site-0': Ridge is a regressor|has no model"),
    ],
)
def test_what_there_is_not_for_them_is_refused_in_one_line(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedkinError, match=message) as refused:
        fedkin.auto(sites(clients=4, samples=20), model, "quick", **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("regression", [False, True])
def test_newcomers_are_among_their_kin_and_can_be_added(tmp_path: Path, regression: bool) -> None:
    federation = sites(clients=12, samples=50, regression=regression)
    every = models(federation)
    early, late, last = federation.take(range(8)), federation.take([8, 11]), federation.take([10, 9])
    result = fedkin.auto(early, {name: every[name] for name in early.names}, "quick", out=tmp_path / "run")
    result = fedkin.load(tmp_path / "run")
    joined = result.join(late, {name: every[name] for name in late.names})
    alone, together = (np.mean(table[result.metric]) for table in (joined.facts["alone"], joined.metrics["deployed"]))
    assert together < alone if regression else together > alone
    assert joined.extras["kin_of_peers"][0, 1::2].sum() < 0.2  # the others are of the contrary kind
    joined.save(tmp_path / "joined")
    grown = result.grown(joined)
    grown.save(tmp_path / "run")
    again, apart = fedkin.load(tmp_path / "run"), fedkin.load(tmp_path / "joined")
    for one in (result, joined):
        for k, name in enumerate(one.names):
            x = (early if one is result else late).test[k][0]
            own = one.models[name].predict(x)
            assert np.array_equal(own, again.models[name].predict(x))
            assert one is result or np.array_equal(own, apart.models[name].predict(x))
    assert again.kin.shape == (10, 10)
    assert again.kin.sum(axis=1) == pytest.approx(1)
    after = again.join(last, {name: every[name] for name in last.names})
    assert after.extras["kin_of_peers"][0, 8] > 0.05  # the newcomer of its kind helps, too
    assert result.facts["bytes"] < again.facts["bytes"]
    assert joined.report(tmp_path / "page.html").stat().st_size
    with pytest.raises(FedkinError, match="newcomers has nothing for newcomers"):
        joined.join(last, {name: every[name] for name in last.names})
    with pytest.raises(FedkinError, match="models of your own"):
        again.join(last)
    with pytest.raises(FedkinError, match="give newcomers estimators"):
        again.join(last, "mlp")


def test_where_there_are_many_the_nearest_visit_a_newcomer_as_they_visit_a_client() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 4))
    others = np.delete(np.arange(30), 7)
    assert others[nearest_to(rows[7:8], rows[others])[0]].tolist() == candidates(rows, 20, 0)[7].tolist()


def test_bytes_are_those_of_what_estimators_hold_and_of_sums() -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    assert held_bytes(LogisticRegression().fit(x, y)) == (3 + 1) * 8 + 2 * 8 + 1 * 4  # weights, classes, iterations
    forest = RandomForestClassifier(2, random_state=0).fit(x, y)
    trees = [tree.tree_.__getstate__() for tree in forest.estimators_]
    least = sum(state["nodes"].nbytes + state["values"].nbytes for state in trees)
    assert least <= held_bytes(forest) < least + 500
    federation = sites(clients=4, samples=40)
    one, two = (fedkin.auto(federation, model, "quick") for model in ("ridge", "forest:3"))
    statistics, models = 4 * 6 * 3 * 8, 4 * (6 * 8 + 8 + 2 * 8 + 4)
    assert (
        statistics + 4 * models < one.facts["bytes"] < two.facts["bytes"]
    )  # a model goes to the server and to three others


def test_nobody_is_surer_than_laplace() -> None:
    assert cautious(np.array([[1.0, 0.0]]), 3).tolist() == [[0.8, 0.2]]


def test_the_command_takes_the_name_of_an_estimator() -> None:
    told = CliRunner().invoke(
        app, ["auto", "--data", "digits", "--clients", "4", "--model", "tree:4", "--effort", "quick"]
    )
    assert told.exit_code == 0, told.output
    assert "together" in told.output
