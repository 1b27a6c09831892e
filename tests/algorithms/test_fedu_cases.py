"""FedU's special cases, as its paper has them: conventional averaging, pFedMe and Per-FedAvg, the last two around a hub."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin import Federation, FedkinError, theory
from fedkin.algorithms import FedAvg, FedU, PerFedAvg, PFedMe
from fedkin.graphs import ClientGraph, complete, empty
from fedkin.graphs.builders import starred

CLIENTS, FEATURES = 4, 3


@pytest.fixture
def federation(least_squares: Any) -> Federation:
    """Least squares with different solutions, equal sizes."""
    made: Federation = least_squares(seed=5, clients=CLIENTS, samples=16, growth=0.2, shift=1)
    return made


def run(federation: Federation, method: Any, graph: Any = None, **options: Any) -> fedkin.Result:
    return fedkin.train(federation, "linear", method, graph, **{"rounds": 5, "dtype": "float64", "seed": 2, **options})


def test_a_round_around_the_hub_is_the_formula(federation: Federation) -> None:
    """Clients that sit out stay; the hub hears those who were drawn, and all use the rows from before the step."""
    common: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch_size": 8}
    method = FedU(**common, eta=0.4, c=0.5, hub=0.7)
    start = run(federation, method, rounds=0).rows
    alone = run(federation, FedU(**common, eta=0.0), "empty", rounds=1, cohort=3).rows
    found = run(federation, method, rounds=1, cohort=3)
    cohort = np.flatnonzero((alone != start).any(axis=1))
    step, hub = 0.5 * 0.4 * 0.05 * 2 * 0.7, start[0]
    expected, centre = alone.copy(), hub.copy()
    for k in cohort:
        expected[k] = alone[k] - step * (alone[k] - hub)
        centre -= step * (hub - alone[k])
    np.testing.assert_allclose(found.rows, expected, atol=1e-14)
    np.testing.assert_allclose(found.extras["hub"][0], centre, atol=1e-14)


def test_conventional_averaging_by_its_iterates(federation: Federation) -> None:
    """On the complete graph, c·μ̃·η·a·K = 1 makes the step I − sL = 11ᵀ/K: FedAvg of clients of equal size."""
    common: dict[str, Any] = {"lr": 0.05, "epochs": 2, "batch_size": 8}
    whole = FedU(**common, eta=1 / (0.05 * 2 * 0.5 * CLIENTS))
    found = run(federation, whole, complete(federation.names, 0.5))
    np.testing.assert_allclose(found.rows, run(federation, FedAvg(**common)).rows, atol=1e-12)


def test_conventional_averaging_as_the_limit_of_the_star(federation: Federation, moments: Any) -> None:
    """As cηa grows, the star's solution is the minimiser of Σ F_k, where FedAvg with full gradients rests."""
    hessians, linear = moments(federation)
    star, together = starred(empty(federation.names), 1.0), np.linalg.solve(hessians.sum(axis=0), linear.sum(axis=0))
    distance = [np.abs(theory.stationary_point(hessians, linear, star, s) - together).max() for s in (1e2, 1e4, 1e6)]
    assert distance[0] > 50 * distance[1] > 2500 * distance[2]
    averaged = run(federation, FedAvg(lr=0.12, steps=1, batch_size=100), rounds=200).rows
    np.testing.assert_allclose(averaged, np.tile(together, (CLIENTS, 1)), atol=1e-8)


def test_pfedme_is_the_star(federation: Federation, moments: Any) -> None:
    """Where FedU rests around a hub, pFedMe with λ = cηa has its personal and common models."""
    lam = 0.8
    hessians, linear = moments(federation)
    envelope = [h @ np.linalg.inv(h + lam * np.eye(len(h))) * lam for h in hessians]
    common = np.linalg.solve(
        np.sum(envelope, axis=0), sum(e @ np.linalg.solve(h, b) for e, h, b in zip(envelope, hessians, linear))
    )
    personal = np.array([np.linalg.solve(h + lam * np.eye(len(h)), b + lam * common) for h, b in zip(hessians, linear)])
    star = starred(empty(federation.names), 2.0)
    np.testing.assert_allclose(theory.stationary_point(hessians, linear, star, lam / 2), personal, atol=1e-10)

    def rest(rate: float) -> np.ndarray:
        """Where FedU's round, an affine map of all rows and the hub, rests; it is the run's map, to rounding."""
        method = FedU(lr=rate, steps=1, batch_size=100, hub=2.0, eta=lam, c=0.5)
        size, nodes = FEATURES, CLIENTS + 1
        local = np.eye(nodes * size)
        for k, h in enumerate(hessians):
            local[k * size : (k + 1) * size, k * size : (k + 1) * size] -= rate * h
        step = np.kron(np.eye(nodes) - 0.5 * rate * lam * star.laplacian().toarray(), np.eye(size))
        push = step @ np.concatenate([rate * linear.ravel(), np.zeros(size)])
        at = np.tile(run(federation, method, rounds=0).rows[0], nodes)
        for _ in range(5):
            at = step @ local @ at + push
        result = run(federation, method)
        np.testing.assert_allclose(np.concatenate([result.rows.ravel(), result.extras["hub"][0]]), at, atol=1e-13)
        return np.linalg.solve(np.eye(nodes * size) - step @ local, push).reshape(nodes, size)

    far, near = (np.abs(rest(rate) - np.concatenate([personal, [common]])).max() for rate in (0.02, 0.01))
    assert 0 < near < 0.55 * far < 0.02  # O(μ)
    np.testing.assert_allclose(rest(0.01)[-1], rest(0.01)[:-1].mean(axis=0), atol=1e-12)
    own = PFedMe(lam=lam, inner_steps=100, personal_lr=0.1, steps=1, batch_size=100)
    np.testing.assert_allclose(run(federation, own, rounds=30).rows[0], common, atol=1e-6)


def test_per_fedavg_is_bounded_by_the_star(federation: Federation, moments: Any) -> None:
    """Σ F_k(w − α∇F_k(w)) ≤ min_W J(W, w) with cηa = 1/α, for convex losses and α ≤ 1/β; for small α they have one solution."""
    hessians, linear = moments(federation)
    beta = np.linalg.eigvalsh(hessians).max()
    rng = np.random.default_rng(0)

    def value(h: np.ndarray, b: np.ndarray, w: np.ndarray) -> float:
        return float(w @ h @ w / 2 - b @ w)

    for alpha in (1 / beta, 0.3 / beta):
        for _ in range(20):
            w = 3 * rng.normal(size=FEATURES)
            adapted = sum(value(h, b, w - alpha * (h @ w - b)) for h, b in zip(hessians, linear))
            best = [np.linalg.solve(h + np.eye(len(h)) / alpha, b + w / alpha) for h, b in zip(hessians, linear)]
            star = sum(value(h, b, v) + np.square(v - w).sum() / (2 * alpha) for h, b, v in zip(hessians, linear, best))
            assert adapted <= star + 1e-9

    together = np.linalg.solve(hessians.sum(axis=0), linear.sum(axis=0))
    apart, moved = [], []
    for alpha in (0.02, 0.01):
        method = PerFedAvg(alpha=alpha, lr=0.12, steps=1, batch_size=100)
        meta = run(federation, method, rounds=200).rows[0]
        centre = theory.stationary_point(hessians, linear, starred(empty(federation.names), 1.0), 1 / alpha).mean(
            axis=0
        )
        apart.append(np.abs(meta - centre).max())
        moved.append(np.abs(meta - together).max())
    assert apart[1] < 0.3 * apart[0]  # O(α²), while either is O(α) away from averaging
    assert 0.4 < moved[1] / moved[0] < 0.6
    assert apart[1] < 0.15 * moved[1]


def test_influence_goes_through_the_hub(federation: Federation) -> None:
    """One round later everyone has heard of everyone, through the hub alone."""
    once, twice = (run(federation, FedU(hub=0.5, eta=0.3), rounds=t).influence for t in (1, 2))
    assert np.count_nonzero(once) == CLIENTS
    assert np.all(twice > 0)


def test_a_hub_beside_a_graph_resumes_and_repeats(federation: Federation, tmp_path: Any) -> None:
    graph = ClientGraph(np.diag([0.5, 1.0, 0.3], k=1) + np.diag([0.5, 1.0, 0.3], k=-1), federation.names)
    method = FedU(hub=0.5, eta=0.3, local_unit="step")
    whole = run(federation, method, graph, rounds=4)
    run(federation, method, graph, rounds=2, out=tmp_path / "run")
    later = fedkin.resume(tmp_path / "run", federation, rounds=4)
    assert np.array_equal(whole.rows, later.rows)
    assert np.array_equal(whole.extras["hub"], later.extras["hub"])
    filed = run(federation, method, graph, rounds=4, rows_file=str(tmp_path / "rows.bin"))
    assert np.array_equal(whole.rows, filed.rows)


def test_a_hub_is_not_guarded(federation: Federation) -> None:
    with pytest.raises(FedkinError, match="unguarded"):
        FedU(hub=1.0, robust="median")
    with pytest.raises(FedkinError, match="hub"):
        FedU(hub=-1.0)
    with pytest.warns(UserWarning, match="beyond the stable bound"):
        run(federation, FedU(hub=50.0, eta=10.0), rounds=1)
