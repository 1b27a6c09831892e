"""The constants of FedU's lemma and theorems: each inequality against runs, dense matrices and enumerated cohorts."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import ClientGraph, Federation, FedkinError
from fedkin.algorithms import FedU
from fedkin.couplings import LaplacianStep
from fedkin.diagnostics.rates import Convergence, convergence
from fedkin.diagnostics.theory import stationary_point
from fedkin.graphs import complete
from fedkin.models import ModelSpec

CLIENTS, FEATURES = 5, 3


@pytest.fixture
def federation(least_squares: Any) -> Federation:
    made: Federation = least_squares(seed=3, clients=CLIENTS, samples=24, growth=0.3, noise=1)
    return made


def ring(federation: Federation) -> ClientGraph:
    weights = np.roll(np.eye(CLIENTS), 1, axis=1) * np.linspace(0.5, 1.5, CLIENTS)[:, None]
    return ClientGraph(weights + weights.T, federation.names)


def objective(federation: Federation, graph: ClientGraph, rows: np.ndarray, s: float) -> tuple[float, np.ndarray]:
    """J(W) and the gradients ∇F_k(w_k), sample by sample."""
    total, slopes = 0.0, []
    for row, (x, y) in zip(rows, federation.train):
        error = x @ row - np.asarray(y).ravel()
        total += float(np.mean(error**2))
        slopes.append(2 * x.T @ error / len(x))
    for k in range(CLIENTS):
        for j in range(CLIENTS):
            total += s / 4 * float(graph.adjacency.toarray()[k, j] * np.sum((rows[k] - rows[j]) ** 2))
    return total, np.array(slopes)


def full_gradients(**parameters: Any) -> FedU:
    return FedU(**{"lr": 0.02, "steps": 3, "batch_size": 100, "eta": 0.6, "c": 0.5, **parameters})


def test_constants_of_least_squares(federation: Federation, moments: Any) -> None:
    graph, method = ring(federation), full_gradients(weight_decay=0.0)
    found = convergence(federation, "linear", method, graph, iterations=300)
    hessians, linear = moments(federation)
    ends = np.linalg.eigvalsh(hessians)
    assert found.alpha == pytest.approx(ends.min(), rel=1e-3)
    assert found.beta == pytest.approx(ends.max(), rel=1e-9)
    assert found.strength == pytest.approx(0.3)  # c·η, not η
    best = stationary_point(hessians, linear, graph, 0.3)
    pull = 0.3 * graph.laplacian().toarray() @ best
    assert found.sigma2 == pytest.approx(np.square(pull).sum() / CLIENTS, rel=1e-9)
    assert found.noise2 == 0  # full batches
    start = fedkin.train(federation, "linear", method, graph, rounds=0, dtype="float64").rows
    assert found.objective == pytest.approx(objective(federation, graph, start, 0.3)[0], rel=1e-12)


def test_lemma_1(federation: Federation, moments: Any) -> None:
    graph = ring(federation)
    found = convergence(federation, "linear", full_gradients(), graph, iterations=200)
    hessians, linear = moments(federation)
    best = stationary_point(hessians, linear, graph, 0.3)
    least = objective(federation, graph, best, 0.3)[0]
    rng = np.random.default_rng(0)
    tight = 0.0
    for size in (1e-3, 0.1, 1, 10):
        for _ in range(20):
            rows = best + size * rng.normal(size=best.shape)
            value, slopes = objective(federation, graph, rows, 0.3)
            bound = 4 * found.beta / CLIENTS * (value - least) + 2 * found.sigma2
            mean = np.square(slopes).sum(axis=1).mean()
            assert mean <= bound * (1 + 1e-9)
            tight = max(tight, mean / bound)
    assert tight > 0.2  # a bound that says something


def test_theorem_1_on_a_run(federation: Federation, moments: Any) -> None:
    """Two starts approach each other at least by Q a round, and both end within the bias of the minimiser."""
    graph, method = ring(federation), full_gradients()
    found = convergence(federation, "linear", method, graph, iterations=200)
    assert 0 < found.contraction < 1
    hessians, linear = moments(federation)
    best = stationary_point(hessians, linear, graph, 0.3)

    def after(rounds: int, seed: int) -> np.ndarray:
        return fedkin.train(federation, "linear", method, graph, rounds=rounds, seed=seed, dtype="float64").rows

    before = np.linalg.norm(after(0, 1) - after(0, 2))
    for rounds in (1, 5, 20):
        apart = np.linalg.norm(after(rounds, 1) - after(rounds, 2))
        assert apart <= found.contraction**rounds * before * (1 + 1e-9)
    enough = int(found.rounds(1e-6))
    distance = np.linalg.norm(after(enough, 1) - best)
    assert 0 < distance <= found.bias + 1e-5
    assert enough == next(t for t in range(1, 10**5) if found.contraction**t <= 1e-6)


def test_theorem_1_for_cohorts(federation: Federation, moments: Any) -> None:
    """Over all cohorts of S clients: the mean contraction, and the coupling that is felt on average."""
    graph, hessians = ring(federation), moments(federation)[0]
    method = full_gradients(eta=2.0)
    found = convergence(federation, "linear", method, graph, iterations=200, cohort=3)
    assert found.cohort == 3
    assert found.strength == pytest.approx(1.0 * 2 / 4)
    step = 0.5 * 2.0 * 0.02 * 3
    rng = np.random.default_rng(1)
    difference = rng.normal(size=(CLIENTS, FEATURES))
    mean, matrices = 0.0, []
    cohorts = list(combinations(range(CLIENTS), 3))
    for cohort in cohorts:
        trained = difference.copy()
        for k in cohort:
            trained[k] = np.linalg.matrix_power(np.eye(FEATURES) - 0.02 * hessians[k], 3) @ difference[k]
        coupling = LaplacianStep(graph, step, list(cohort))
        matrices.append(coupling.matrix())
        mean += float(coupling.apply(torch.from_numpy(trained)).square().sum()) / len(cohorts)
    assert mean <= found.contraction**2 * np.square(difference).sum()
    felt = (np.eye(CLIENTS) - np.mean(matrices, axis=0)) / (0.02 * 3 * 3 / 5)  # a client trains in S/K of the rounds
    np.testing.assert_allclose(felt, found.strength * graph.laplacian().toarray(), atol=1e-12)


def test_theorem_2_on_a_run() -> None:
    """A network: the mean squared gradient of J along a run of one full step a round."""
    rng = np.random.default_rng(0)
    sites = {f"s{k}": (rng.normal(size=(20, 3)) + k, rng.integers(0, 2, 20)) for k in range(3)}
    federation = Federation.from_arrays(sites)
    graph = complete(federation.names, 0.5)
    method, rounds = FedU(lr=0.1, steps=1, batch_size=100, eta=0.4), 8
    along = [fedkin.train(federation, "mlp:4", method, graph, rounds=t, dtype="float64").rows for t in range(rounds)]
    found = [convergence(federation, "mlp:4", method, graph, rows=rows, iterations=25) for rows in along]
    first = found[0]
    beta = max(f.beta for f in found)
    assert 1 / (beta + first.strength * first.rho) >= 0.1
    spec, slopes, largest = ModelSpec.of("mlp:4", federation.task, torch.float64), [], 0.0
    for rows in along:
        own = []
        for row, (x, y) in zip(rows, federation.train):
            module = spec.module(torch.from_numpy(row))
            torch.nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y)).backward()
            own.append(np.concatenate([p.grad.numpy().ravel() for p in module.parameters() if p.grad is not None]))
        largest = max(largest, float(np.square(own).sum()))
        slopes.append(np.square(np.array(own) + 0.4 * graph.laplacian().toarray() @ rows).sum())
    assert largest == pytest.approx(3 * max(f.sigma2 for f in found), rel=1e-9)
    bound = 2 * first.objective / (0.1 * rounds) + (0.1 * first.strength * first.rho) ** 2 * largest
    assert np.mean(slopes) <= bound
    assert first.rounds_nonconvex(0.5) == np.ceil(2 * first.objective / (0.1 * 0.5))


def test_mini_batches_vary_as_all_batches_say(federation: Federation) -> None:
    """σ₁² by enumerating every batch of two of a small client."""
    rng = np.random.default_rng(0)
    small = Federation.from_arrays({f"s{k}": (rng.normal(size=(6, 2)), rng.normal(size=6)) for k in range(2)})
    method = FedU(batch_size=2, lr=0.01)
    rows = fedkin.train(small, "linear", method, rounds=0, dtype="float64").rows
    found = convergence(small, "linear", method, rows=rows)
    expected = []
    for row, (x, y) in zip(rows, small.train):
        slopes = 2 * x * (x @ row - np.asarray(y).ravel())[:, None]
        means = [slopes[list(pair)].mean(axis=0) for pair in combinations(range(len(x)), 2)]
        expected.append(np.mean([np.square(m - slopes.mean(axis=0)).sum() for m in means]))
    assert found.noise2 == pytest.approx(np.mean(expected), rel=1e-9)
    assert found.variance > 0


def test_where_the_theorems_say_nothing(federation: Federation) -> None:
    wild = convergence(federation, "linear", full_gradients(lr=5.0), ring(federation))
    assert wild.contraction == 1
    assert wild.rounds(0.1) == wild.bias == wild.variance == wild.rounds_nonconvex(1) == np.inf
    assert "does not apply" in str(wild)
    around = convergence(federation, "linear", full_gradients(hub=1.0))
    assert around.alpha == 0
    assert around.rho == pytest.approx(CLIENTS + 1)  # a star of K spokes
    calm = Convergence(1, 2, 3, 0.1, 1, 0, 1, 0.1, 1, 4, 4)
    for call in (lambda: calm.rounds(2), lambda: calm.rounds_nonconvex(0)):
        with pytest.raises(FedkinError, match=r"is (2|0);"):
            call()
    with pytest.raises(FedkinError, match="rows have shape"):
        convergence(federation, "linear", FedU(), rows=np.zeros((2, 2)))
