"""Methods that deploy what validates better have something to validate on, also where no samples were set aside for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import Federation, FedkinError
from fedkin.federation.folds import folded

HOW: dict[str, Any] = {"rounds": 4, "seed": 2}


def federation() -> Federation:
    """Few samples and much noise: local training fits the noise, and the model received from all does better."""
    rng = np.random.default_rng(0)
    slope = rng.normal(size=12)
    made = {}
    for k in range(6):
        x = rng.normal(size=(75, 12))
        y = (x @ slope + 3 * rng.normal(size=75) > 0).astype(int)
        made[f"c{k}"] = {"train": (x[:15], y[:15]), "test": (x[15:], y[15:])}
    return Federation.from_arrays(made, classes=[0, 1])


def method(**own: Any) -> Any:
    return fedkin.algorithms.FedPnP(lr=0.5, epochs=20, **own)


def test_a_fifth_of_the_training_samples_decides_and_all_of_them_train() -> None:
    data = federation()
    usual = fedkin.train(data, "mlr", method(), graph="complete", **HOW)
    judged = fedkin.train(data, "mlr", method(), graph="complete", validation="fold", **HOW)
    assert set(usual.choice) == {"trained"}
    assert "received" in judged.choice
    assert judged.metrics["pre"] == usual.metrics["pre"]  # the run itself is the same
    assert judged.metrics["post"] == usual.metrics["post"]
    cut = folded(data, 5, 1, seed=2)
    further = replace(data, train=cut.train, validation=cut.validation)
    by_hand = fedkin.train(further, "mlr", method(), graph="complete", **HOW)
    assert judged.choice == by_hand.choice
    for k, name in enumerate(data.names):
        when = "post" if judged.choice[k] == "trained" else "pre"
        assert judged.metrics["deployed"]["test_accuracy"][k] == judged.metrics[when]["test_accuracy"][k]
        if when == "post":
            x = torch.randn(4, 12)
            assert torch.equal(judged.models[name](x), usual.models[name](x))
    assert judged.facts["judging_seconds"] > 0


def test_test_samples_decide_nothing() -> None:
    data = federation()
    spoilt = replace(data, test=type(data.test)(data.test.x, 1 - data.test.y, data.test.offsets))
    one, two = (
        fedkin.train(own, "mlr", method(), graph="complete", validation="fold", **HOW) for own in (data, spoilt)
    )
    assert one.choice == two.choice


def test_given_validation_samples_and_other_methods_need_no_further_run() -> None:
    data = federation()
    cut = folded(data, 5, 1, seed=0)
    given = replace(data, train=cut.train, validation=cut.validation)
    one, two = (fedkin.train(given, "mlr", method(), graph="complete", validation=v, **HOW) for v in ("given", "fold"))
    assert one.choice == two.choice
    assert "judging_seconds" not in two.facts
    assert "judging_seconds" not in fedkin.train(data, "mlr", "fedavg", validation="fold", **HOW).facts


def test_a_run_that_goes_on_decides_the_same(tmp_path: Path) -> None:
    data = federation()
    whole = fedkin.train(data, "mlr", method(), graph="knn:2", validation="fold", **HOW)
    stop = {"out": tmp_path / "run", "callbacks": [lambda run, record: record["round"] == 2]}
    fedkin.train(data, "mlr", method(), graph="knn:2", validation="fold", **HOW, **stop)
    again = fedkin.resume(tmp_path / "run", data)
    assert again.choice == whole.choice
    assert np.allclose(again.rows, whole.rows)


def test_where_it_cannot_be_is_said_in_one_line() -> None:
    privacy = {"level": "sample", "epsilon": 6, "delta": 1e-5, "clip": 1.0}
    with pytest.raises(FedkinError, match="private training would pay for"):
        fedkin.train(federation(), "mlr", "fedavg", validation="fold", privacy=privacy, **HOW)
