"""Methods that deploy what validates better have something to validate on, also where no samples were set aside for it."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import Federation, FedkinError
from fedkin.algorithms import FedAvg
from fedkin.federation.folds import folded
from fedkin.roster import Roster
from fedkin.run import Run, make_options
from fedkin.run.judging import MOST_JUDGED, is_wanted

HOW: dict[str, Any] = {"rounds": 4, "seed": 2}
PRIVACY = {"level": "sample", "epsilon": 6, "delta": 1e-5, "clip": 1.0}


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
    usual = fedkin.train(data, "mlr", method(), graph="complete", validation="given", **HOW)
    judged = fedkin.train(data, "mlr", method(), graph="complete", validation="fold", **HOW)
    assert set(usual.choice) == {"trained"}
    assert "received" in judged.choice
    assert judged.metrics["pre"] == usual.metrics["pre"]  # the run itself is the same
    assert judged.metrics["post"] == usual.metrics["post"]
    by_hand = fedkin.train(folded(data, 5, 1, seed=2), "mlr", method(), graph="complete", **HOW)
    by_default = fedkin.train(data, "mlr", method(), graph="complete", **HOW)
    assert judged.choice == by_hand.choice == by_default.choice
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
    with pytest.raises(FedkinError, match="private training would pay for"):
        fedkin.train(federation(), "mlr", "fedavg", validation="fold", privacy=PRIVACY, **HOW)


def test_by_default_only_where_it_can_be_and_is_no_burden() -> None:
    usual, options = method(), make_options()
    private = usual.model_copy(update={"privacy": FedAvg(privacy=PRIVACY).privacy})

    def many(clients: int) -> Roster:
        one, names = federation().roster(), tuple(f"c{k}" for k in range(clients))
        ones, none = np.ones(clients, dtype=int), np.zeros(clients, dtype=int)
        return replace(one, names=names, train=ones, validation=none, test=none)

    assert is_wanted(many(MOST_JUDGED), usual, options)
    assert is_wanted(many(6), usual, make_options(engine="flower"))
    assert is_wanted(many(6), usual, make_options(rows_file="rows.bin"))
    assert is_wanted(many(MOST_JUDGED + 1), usual, make_options(validation="fold"))
    assert not is_wanted(many(MOST_JUDGED + 1), usual, options)
    assert not is_wanted(many(6), private, options)
    assert not is_wanted(many(6), usual, make_options(validation="given"))
    assert not is_wanted(many(6), FedAvg(), make_options(validation="fold"))


def test_a_run_that_was_stopped_is_not_judged_and_one_that_ended_early_by_as_many_rounds() -> None:
    data, lengths = federation(), []
    stop = [lambda run, record: record["round"] == 2]
    ended = fedkin.train(data, "mlr", method(), graph="complete", callbacks=stop, **{**HOW, "rounds": 6})
    by_hand = fedkin.train(folded(data, 5, 1, seed=2), "mlr", method(), graph="complete", **{**HOW, "rounds": 2})
    assert ended.choice == by_hand.choice

    def interrupted(run: Run, record: Any) -> bool:
        lengths.append(record["round"])
        signal.raise_signal(signal.SIGINT)
        return False

    told = fedkin.train(data, "mlr", method(), graph="complete", callbacks=[interrupted], **HOW)
    assert lengths == [1]
    assert not told.facts["finished"]
    assert "judging_seconds" not in told.facts
