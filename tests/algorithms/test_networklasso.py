from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.algorithms.local import Local
from fedkin.algorithms.networklasso import NetworkLasso
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph

EDGES = [(0, 1, 1.0), (1, 2, 0.5), (0, 2, 1.0), (2, 3, 0.2), (3, 4, 1.0), (4, 5, 2.0)]


def two_groups(sizes: tuple[int, ...] = (20, 30, 25, 20, 15, 40)) -> tuple[Federation, ClientGraph]:
    rng, told = np.random.default_rng(2), {}
    for k, n in enumerate(sizes):
        x = rng.normal(size=(n, 2))
        true = np.array([2.0, -1.0]) if k < 3 else np.array([-1.0, 1.0])
        told[f"c{k}"] = {"train": (x, x @ true + 0.3 * rng.normal(size=n)), "test": (x, x @ true)}
    adjacency = np.zeros((6, 6))
    for i, j, weight in EDGES:
        adjacency[i, j] = adjacency[j, i] = weight
    federation = Federation.from_arrays(told, task="regression")
    return federation, ClientGraph(adjacency, federation.names)


def by_admm(federation: Federation, lam: float, rho: float = 1.0) -> np.ndarray:
    """The network lasso by its authors' algorithm: a copy of both ends at every edge, exact steps, float64."""
    x = np.zeros((6, 2))
    z = {(i, j): np.zeros(2) for a, b, _ in EDGES for i, j in ((a, b), (b, a))}
    u = {key: np.zeros(2) for key in z}
    for _ in range(1500):
        for k in range(6):
            features, target = federation.train[k]
            mine = [key for key in z if key[0] == k]
            left = 2 * features.T @ features / len(target) + rho * len(mine) * np.eye(2)
            right = 2 * features.T @ target.ravel() / len(target) + rho * sum(z[key] - u[key] for key in mine)
            x[k] = np.linalg.solve(left, right)
        for i, j, weight in EDGES:
            one, other = x[i] + u[i, j], x[j] + u[j, i]
            gap = np.linalg.norm(one - other)
            theta = max(1 - lam * weight / (rho * gap), 0.5) if gap else 0.5
            z[i, j], z[j, i] = theta * one + (1 - theta) * other, (1 - theta) * one + theta * other
        for i, j in z:
            u[i, j] += x[i] - z[i, j]
    return x


@pytest.mark.parametrize("lam", [0.05, 0.5, 3.0])
def test_a_convex_problem_is_solved_as_by_admm(run: Any, lam: float) -> None:
    federation, graph = two_groups()
    method = NetworkLasso(lr=0.2, steps=1, batch_size=100, lam=lam)
    done = run(federation, "linear", method, graph=graph, rounds=200, eval_every=200)
    assert np.allclose(done.state.rows.numpy(), by_admm(federation, lam), atol=2e-4)


def test_clients_who_make_different_numbers_of_steps_meet_where_theirs_weigh(run: Any) -> None:
    """A large λ makes one model: Σ_k ω_k/s_k / Σ_k 1/s_k after one round."""
    federation, graph = two_groups()
    alone = run(federation, "linear", Local(lr=0.05, batch_size=10), rounds=1)
    done = run(federation, "linear", NetworkLasso(lr=0.05, batch_size=10, lam=1e4), graph=graph, rounds=1)
    steps = np.ceil(federation.train.sizes / 10)
    mean = (alone.final["pre"]["model"].numpy() / steps[:, None]).sum(axis=0) / (1 / steps).sum()
    assert np.allclose(done.state.rows.numpy(), mean, atol=1e-4)


def test_no_strength_is_local(federation: Any, run: Any, models: Any) -> None:
    ours = run(federation, "bn-mlp:4", NetworkLasso(lr=0.1, batch_size=6, lam=0), rounds=3)
    alone = run(federation, "bn-mlp:4", Local(lr=0.1, batch_size=6), rounds=3)
    assert torch.equal(models(ours), models(alone))


def test_neighbours_are_fused_into_two_models(run: Any) -> None:
    federation, graph = two_groups()
    method = NetworkLasso(lr=0.2, steps=1, batch_size=100, lam=0.5)
    done = run(federation, "linear", method, graph=graph, rounds=200, eval_every=200)
    assert done.state.log["models"] == 2


def test_those_who_sit_out_keep_their_rows(federation: Any, run: Any) -> None:
    method = NetworkLasso(lr=0.1, lam=0.5)
    done = run(federation, "mlp:4", method, rounds=1, cohort=2)
    out = [k for k in range(4) if k not in method.cohort(1, 2, done.setting)]
    assert torch.equal(done.state.rows[out[0]], done.setting.spec.initial_row(done.setting.streams))


@pytest.mark.parametrize("lam", [0.05, 0.5])
def test_primal_dual_steps_end_where_admm_does(run: Any, lam: float) -> None:
    federation, graph = two_groups()
    method = NetworkLasso(lr=0.1, steps=10, batch_size=100, lam=lam, update="primal-dual")
    done = run(federation, "linear", method, graph=graph, rounds=150, eval_every=150)
    assert np.allclose(done.state.rows.numpy(), by_admm(federation, lam), atol=2e-4)


def test_a_primal_dual_round_is_the_authors(run: Any) -> None:
    """Two rounds by hand: exact proximal steps of quadratics, the dual step at 2W′ − W, the projection."""
    federation, graph = two_groups()
    lam, most = 0.5, 3  # client 2 has three neighbours
    method = NetworkLasso(lr=0.1, steps=400, batch_size=100, lam=lam, update="primal-dual")
    done = run(federation, "linear", method, graph=graph, rounds=2)
    w = np.tile(done.setting.spec.initial_row(done.setting.streams).numpy(), (6, 1)).astype(float)
    edges = sorted((i, j, a) for i, j, a in EDGES)
    u = np.zeros((len(edges), 2))
    for _ in range(2):
        new = w.copy()
        for k in range(6):
            x, y = federation.train[k]
            pull = sum(u[e] * ((i == k) - (j == k)) for e, (i, j, _) in enumerate(edges))
            left = 2 * x.T @ x / len(y) + most * np.eye(2)
            new[k] = np.linalg.solve(left, 2 * x.T @ y.ravel() / len(y) + most * (w[k] - pull / most))
        for e, (i, j, a) in enumerate(edges):
            ahead = u[e] + 0.5 * ((2 * new[i] - w[i]) - (2 * new[j] - w[j]))
            u[e] = ahead * min(1.0, lam * a / np.linalg.norm(ahead))
        w = new
    assert np.allclose(done.state.rows.numpy(), w, atol=1e-4)
    assert np.allclose(done.state.arrays["dual"].numpy(), u, atol=1e-4)


def test_edges_of_those_who_sit_out_keep_their_duals(run: Any) -> None:
    federation, graph = two_groups()
    method = NetworkLasso(lr=0.1, steps=2, lam=0.5, update="primal-dual")
    done = run(federation, "linear", method, graph=graph, rounds=1, cohort=3)
    there = set(method.cohort(1, 3, done.setting).tolist())
    moved = done.state.arrays["dual"].norm(dim=1).numpy() > 0
    assert moved.tolist() == [i in there and j in there for i, j, _ in sorted(EDGES)]
