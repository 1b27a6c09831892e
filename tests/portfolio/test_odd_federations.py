"""Federations that are odd: handled, or refused in one line before any training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedkin import Federation, FedkinError, Result
from fedkin.federation.folds import assign
from fedkin.portfolio.auto import auto
from fedkin.result.verdict import gain_text, sentence, standing
from fedkin.task import Forecast

from .conftest import sites

FAST: dict[str, Any] = {"effort": "quick", "rounds": 2, "lr": 0.1}


def with_clients(more: dict[str, Any], regression: bool = False, **options: Any) -> Federation:
    """Four ordinary clients, and more."""
    usual = sites(clients=4, regression=regression)
    clients: dict[str, Any] = {
        name: {"train": usual.train[k], "test": usual.test[k]} for k, name in enumerate(usual.names)
    }
    return Federation.from_arrays({**clients, **more}, **options)


def sound(result: Result) -> bool:
    """Every client has a model that predicts, and its entry."""
    values = result.metrics["deployed"][result.metric]
    return bool(np.isfinite(values).all()) and set(result.auto) == set(result.names)


def test_one_client_has_nobody_to_learn_from() -> None:
    with pytest.raises(FedkinError, match="at least two clients"):
        auto(sites(clients=1), "mlr", **FAST)


@pytest.mark.parametrize("samples", [1, 2, 3, 4])
def test_a_client_with_hardly_any_samples_and_more_folds_than_samples(samples: int) -> None:
    x, y = np.random.default_rng(0).normal(size=(samples + 4, 6)), np.arange(samples + 4) % 2
    tiny = {"train": (x[:samples], y[:samples]), "test": (x[samples:], y[samples:])}
    result = auto(with_clients({"tiny": tiny}, classes=[0, 1]), "mlr", **{**FAST, "effort": "standard"})
    assert sound(result)
    assert standing(result.auto["tiny"]) == "unknown"  # too few to judge by
    assert "too few samples to judge tiny" in sentence(result)


def test_a_class_that_only_one_client_has() -> None:
    x = np.random.default_rng(0).normal(size=(40, 6))
    odd = {"train": (x[:30], np.arange(30) % 3), "test": (x[30:], np.arange(10) % 3)}
    result = auto(with_clients({"odd": odd}, classes=[0, 1, 2]), "mlr", **FAST)
    assert sound(result)
    assert result.task.outputs == 3


def test_a_client_with_one_class_is_not_judged_by_its_own_samples() -> None:
    x = np.random.default_rng(0).normal(size=(40, 6))
    one = {"train": (x[:30], np.ones(30, dtype=int)), "test": (x[30:], np.ones(10, dtype=int))}
    result = auto(with_clients({"one class": one}, classes=[0, 1]), "mlr", **FAST)
    assert sound(result)
    assert result.auto["one class"]["gain"][0] == pytest.approx(result.facts["mean_gain"])
    assert standing(result.auto["one class"]) == "unknown"
    assert gain_text(result.auto["one class"]) == "?"
    assert "too few of a second class to judge one class" in sentence(result)


def test_a_target_with_one_value() -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    constant = {f"c{k}": (x[20 * k : 20 * k + 20], np.full(20, 3.0)) for k in range(3)}
    assert sound(auto(Federation.from_arrays(constant), "linear", **FAST))
    with pytest.raises(FedkinError, match="single class"):
        auto(
            Federation.from_arrays({name: (own, np.zeros(20, dtype=int)) for name, (own, _) in constant.items()}), "mlr"
        )


def test_all_clients_are_tiny() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    clients = {f"c{k}": {"train": (x[k : k + 1], [k % 2]), "test": (x[6:], [0, 1] * 3)} for k in range(4)}
    result = auto(Federation.from_arrays(clients, classes=[0, 1]), "mlr", **FAST)
    assert sound(result)
    assert "nothing can be said" in sentence(result)


def test_the_order_of_a_series_is_the_order_of_its_samples() -> None:
    """Folds are blocks of neighbours; samples that were shuffled before stay in the order they are given in."""
    federation = sites(clients=2, regression=True)
    task = replace(federation.task, output_shape=(1,), forecast=Forecast(mean=0.0, std=1.0, every=5))
    series = replace(federation, task=task)
    place = assign(series, 0, 3, seed=0)
    assert (np.diff(place) >= 0).all()
    assert set(place) == {0, 1, 2}


def stretched_inputs(factor: float) -> dict[str, Any]:
    """A client like site-0 whose inputs are so many times as large: the rate that suits the others is too high for it."""
    rng = np.random.default_rng(0)
    slopes = np.random.default_rng(0).normal(size=(2, 6))[0] * 2
    x = rng.normal(size=(60, 6))
    y = x @ slopes
    return {"train": (factor * x[:30], y[:30]), "test": (factor * x[30:], y[30:])}


@pytest.mark.parametrize("factor", [6.0, 40.0, 1e6])
def test_a_client_that_diverges_at_the_rate_of_the_others_costs_nobody_else_anything(factor: float) -> None:
    how = {**FAST, "rounds": 10}
    usual = auto(with_clients({}, regression=True), "linear", **how)
    result = auto(with_clients({"wild": stretched_inputs(factor)}, regression=True), "linear", **how)
    mse = np.array(result.metrics["deployed"]["test_mse"])
    assert sound(result)
    assert (mse[:4] < 1.5 * np.array(usual.metrics["deployed"]["test_mse"])).all()
    if factor == 6:  # slower, it learns as well as anybody
        assert mse[4] < 0.2 * stretched_inputs(factor)["test"][1].var()


def test_a_rate_at_which_everybody_diverges_is_lowered() -> None:
    federation = with_clients({}, regression=True)
    result = auto(federation, "linear", effort="quick", rounds=10, lr=2.0)
    for k in range(4):
        assert result.metrics["deployed"]["test_mse"][k] < 0.5 * federation.test[k][1].var()
