"""A range test chooses training on a fold of the training samples, once, and says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import fedkin
from fedkin import FedkinError, algorithms
from fedkin.cli import app
from fedkin.deployment.server import FederationFile
from fedkin.federation import Federation
from fedkin.federation.folds import without_fold
from fedkin.run import range_test
from fedkin.run.directory import read_config

ROUNDS = 10


@pytest.fixture(scope="module")
def digits() -> Federation:
    return fedkin.data.load("digits", clients=4, partition="dirichlet:1.0", samples=400, seed=0)


def trained(federation: Federation, algorithm: Any = "local", **options: Any) -> fedkin.Result:
    return fedkin.train(federation, "mlr", algorithm, rounds=ROUNDS, range_test=True, **options)


def note_of(result: fedkin.Result) -> str:
    return next(note for note in result.notes if "range test" in note)


def test_it_trains_as_the_way_with_the_smallest_loss_on_the_fold(digits: Federation) -> None:
    """Beside a loop over the ways, each a run of its own on four fifths of the training samples."""
    cut = without_fold(digits, 5, 0, seed=0)
    losses = {}
    for way in range_test.ways(algorithms.make("local")):
        result = fedkin.train(cut, "mlr", algorithms.make("local", way), rounds=4, eval_every=4)
        losses[str(way)] = (float(np.nanmean(result.metrics["deployed"]["validation_loss"])), way)
    loss, way = min(losses.values(), key=lambda one: one[0])
    assert way, "on digits the default rate is slow, so that a choice shows"
    result = trained(digits)
    assert f"loss {loss:.4g} on samples held out" in note_of(result)
    again = fedkin.train(digits, "mlr", algorithms.make("local", way), rounds=ROUNDS)
    assert np.array_equal(result.rows, again.rows)


def test_test_samples_decide_nothing(digits: Federation) -> None:
    shuffled = replace(digits, test=replace(digits.test, y=np.roll(digits.test.y, 7)))
    assert note_of(trained(shuffled)) == note_of(trained(digits))


def test_a_run_that_goes_on_tries_nothing_again(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(digits, seed=1)
    trained(digits, seed=1, out=tmp_path / "run")
    assert read_config(tmp_path / "run")["algorithm"]["lr"] != 0.05
    monkeypatch.setattr(range_test, "best_way", lambda *asked: pytest.fail("tried again"))
    longer = fedkin.resume(tmp_path / "run", digits, rounds=ROUNDS + 2)
    assert np.array_equal(longer.history[ROUNDS - 1]["pre"]["test_loss"], whole.history[ROUNDS - 1]["pre"]["test_loss"])


def test_ways_that_a_method_refuses_are_left_out(digits: Federation) -> None:
    """SCAFFOLD takes no Adam."""
    assert "the range test chose" in note_of(trained(digits, "scaffold"))
    assert "optimiser" not in note_of(trained(digits, "scaffold"))


def test_methods_with_rates_of_their_own_train_as_they_are(digits: Federation) -> None:
    result = trained(digits, "pfedme")
    assert "pfedme has rates of its own" in note_of(result)
    assert np.array_equal(result.rows, fedkin.train(digits, "mlr", "pfedme", rounds=ROUNDS).rows)


def test_a_trial_that_breaks_off_is_out_of_the_question() -> None:
    class Trial:
        def __init__(self, loss: float) -> None:
            self.metrics = {"deployed": {"validation_loss": [loss, float("nan")]}}

    def trial(way: Any) -> Any:
        if way.optimiser == "adam":
            raise FedkinError("diverged")
        return Trial(way.lr)

    chosen, said = range_test.best_way(algorithms.make("fedavg"), trial)
    assert chosen.lr == 0.01
    assert said == "the range test chose lr=0.01: loss 0.01 on samples held out (0.05 with the defaults)"

    def hopeless(way: Any) -> Any:
        raise FedkinError("diverged")

    with pytest.raises(FedkinError, match="no trial of the range test came to an end: diverged"):
        range_test.best_way(algorithms.make("fedavg"), hopeless)


def test_a_rate_of_the_users_own_and_privacy_are_refused(digits: Federation) -> None:
    with pytest.raises(FedkinError, match="leave lr out, or range_test"):
        trained(digits, algorithms.make("fedavg", {"lr": 0.1}))
    private = {"level": "sample", "epsilon": 6, "delta": 1e-5, "clip": 1.0}
    with pytest.raises(FedkinError, match="every trial of a range test would spend"):
        trained(digits, "fedavg", privacy=private)
    with pytest.raises(FedkinError, match="auto finds rates on folds itself"):
        fedkin.auto(digits, "mlr", range_test=True)


def test_sites_are_not_asked_for_trials(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text("[federation]\nsites = 1\n[run]\nrange_test = true\n")
    with pytest.raises(FedkinError, match="sites are not asked for trials"):
        FederationFile.read(tmp_path / "federation.toml")


def test_every_method_of_a_comparison_has_a_test_of_its_own(digits: Federation) -> None:
    found = fedkin.compare(digits, "mlr", "local,fedavg", rounds=4, range_test=True)
    assert all("the range test chose" in note_of(result) for result in found.results)


def test_the_command_line_has_a_flag(tmp_path: Path) -> None:
    asked = "--data digits --clients 3 --partition iid --model mlr --algorithm local --rounds 5 --range-test"
    outcome = CliRunner().invoke(app, ["run", *asked.split(), "--out", str(tmp_path / "run")])
    assert outcome.exit_code == 0, outcome.output
    assert "the range test chose" in " ".join(outcome.output.split())
