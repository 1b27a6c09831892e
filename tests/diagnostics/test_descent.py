"""FedPnP's Theorem 1 and the global test, measured during runs, against closed forms and plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin import Federation, FedkinError
from fedkin.algorithms import FedAvg, FedBN, FedPnP
from fedkin.diagnostics.descent import LocalDescent, Step
from fedkin.diagnostics.elsewhere import GlobalTest

CLIENTS, FEATURES = 4, 3


@pytest.fixture
def federation(least_squares: Any) -> Federation:
    made: Federation = least_squares(seed=7, clients=CLIENTS, samples=20, growth=0.3, noise=0.5)
    return made


def watched(federation: Federation, rounds: int = 3, **parameters: Any) -> tuple[fedkin.Result, list[Step]]:
    watch = LocalDescent(iterations=200)
    method = FedPnP(**{"batch_size": 100, "steps": 2, "lr": 0.01, "beta": 0.05, **parameters})
    options: dict[str, Any] = {"rounds": rounds, "dtype": "float64"}
    return fedkin.train(federation, "linear", method, "equal", callbacks=[watch], **options), watch.steps


def test_every_number_is_that_of_a_loop(federation: Federation) -> None:
    """Two full-batch steps on least squares, from the rows a shorter run ends with."""
    method: dict[str, Any] = {"mu": 0.7, "eta": 0.1}
    steps = watched(federation, **method)[1]
    assert [step.round for step in steps] == [1, 2, 3]
    for t, step in enumerate(steps):
        start = watched(federation, rounds=t, **method)[0].server_rows
        for k, (x, y) in enumerate(federation.train):
            y = np.asarray(y).ravel()
            hessian = 2 * x.T @ x / len(x)

            def slope(w: np.ndarray, x: np.ndarray = x, y: np.ndarray = y) -> np.ndarray:
                return 2 * x.T @ (x @ w - y) / len(x)

            centre = np.asarray(start[k])
            w = centre.copy()
            for _ in range(2):
                w = w - 0.01 * (slope(w) + 0.7 * (w - centre))
            gamma = np.linalg.norm(slope(w) + 0.7 * (w - centre)) / np.linalg.norm(slope(centre))
            smooth = np.linalg.eigvalsh(hessian)[-1]
            assert step.gamma[k] == pytest.approx(gamma, rel=1e-9)
            assert step.smoothness[k] == pytest.approx(smooth, rel=1e-6)
            assert step.concavity[k] == pytest.approx(0, abs=1e-6)
            expected = 1 / 0.7 - gamma / 0.7 - smooth * (1 + gamma) / 0.7**2 - smooth * (1 + gamma) ** 2 / (2 * 0.7**2)
            assert step.upsilon[k] == pytest.approx(expected, rel=1e-4)
            decrease = np.mean((x @ centre - y) ** 2) - np.mean((x @ w - y) ** 2)
            assert step.decrease[k] == pytest.approx(decrease, rel=1e-9)


def test_the_theorem_and_its_corollary_hold(federation: Federation) -> None:
    largest = max(np.linalg.eigvalsh(2 * x.T @ x / len(x))[-1] for x, _ in federation.train)
    mu = 2.0 * largest
    _, steps = watched(federation, mu=mu, steps=200, lr=0.5 / (mu + largest))
    for step in steps:
        assert np.all(step.gamma < 1e-6)  # solved
        np.testing.assert_allclose(step.upsilon, 1 / mu - 1.5 * step.smoothness / mu**2, rtol=1e-4)
        assert np.all(step.upsilon > 0)
        assert np.all(step.decrease >= step.promised)
    assert "enough" in str(steps[0])
    _, weak = watched(federation, mu=0.2)
    assert f"μ > 1.5 L = {1.5 * largest:.4g}" in str(weak[0])


def test_looking_changes_nothing_of_the_run(federation: Federation) -> None:
    bare = fedkin.train(federation, "mlp:4", FedPnP(), "equal", rounds=3)
    watch = [LocalDescent(every=2, iterations=3), GlobalTest(every=2)]
    seen = fedkin.train(federation, "mlp:4", FedPnP(), "equal", rounds=3, callbacks=watch)
    assert np.array_equal(bare.rows, seen.rows)

    assert [step.round for step in watch[0].steps] == [1, 3]


def test_the_global_test_over_rounds() -> None:
    """Every point is what a run that ends there reports, and what every model scores on the pooled samples."""
    federation = fedkin.data.load("digits", clients=4, partition="labels:3", seed=0)
    curve = GlobalTest()
    fedkin.train(federation, "mlr", FedAvg(), rounds=3, callbacks=[curve])
    assert curve.rounds.tolist() == [1, 2, 3]
    for at, rounds in enumerate((1, 2, 3)):
        ended = fedkin.train(federation, "mlr", FedAvg(), rounds=rounds, global_test=True)
        for moment in ("pre", "post"):
            np.testing.assert_allclose(curve.curves[moment][at], ended.facts["global"][moment], rtol=1e-6)
    x = np.concatenate([x.reshape(len(x), -1) for x, _ in federation.test])
    y = np.concatenate([y for _, y in federation.test])
    row = np.asarray(ended.server_rows[0])
    weight, bias = row[: 10 * x.shape[1]].reshape(10, -1), row[10 * x.shape[1] :]
    hit = np.mean((x @ weight.T + bias).argmax(axis=1) == y)
    np.testing.assert_allclose(curve.curves["pre"][-1], hit, atol=2e-3)


def test_what_is_refused(federation: Federation) -> None:
    for call, match in (
        (lambda: LocalDescent(every=0), "at least 1"),
        (lambda: GlobalTest(every=0), "every 1, 2"),
        (lambda: fedkin.train(federation, "linear", FedAvg(), rounds=1, callbacks=[LocalDescent()]), "no pull μ"),
        (
            lambda: fedkin.train(
                federation, "bn-mlp:3", FedPnP(bn_buffers="local"), "equal", rounds=1, callbacks=[LocalDescent()]
            ),
            "whole rows",
        ),
    ):
        with pytest.raises(FedkinError, match=match):
            call()
    assert not hasattr(FedBN(), "mu")
    silent = Step(1, 0.0, *(np.ones(2) for _ in range(5)))
    assert np.isnan(silent.upsilon).all()
