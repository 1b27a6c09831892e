"""FedU: limits, closed forms, the order of clients, warnings and bad input."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin import ClientGraph, Federation, FedkinError, Result
from fedkin.algorithms import FedU, Local
from fedkin.couplings import total_variation
from fedkin.diagnostics.theory import stationary_point
from fedkin.graphs import complete, empty
from fedkin.run import checkpoint

SIZES = (24, 9, 17, 1, 30, 12)


@pytest.fixture
def federation() -> Federation:
    rng = np.random.default_rng(0)
    clients = {}
    for k, n in enumerate(SIZES):
        y = np.concatenate([np.arange(3), rng.integers(0, 3, n)])[:n]
        clients[f"site-{k}"] = (np.eye(3, 5)[(y + k % 2) % 3] * 2 + rng.normal(size=(n, 5)), y)
    return Federation.from_arrays(clients, classes=[0, 1, 2], test_fraction=0.25)


@pytest.fixture
def graph(federation: Federation) -> ClientGraph:
    """A path with different weights, in another order than the federation's."""
    weights = np.diag([0.5, 1.0, 0.3, 2.0, 0.7], k=1)
    return ClientGraph(weights + weights.T, federation.names).take([5, 2, 0, 1, 4, 3])


def train(federation: Federation, method: Any, graph: Any = None, **options: Any) -> Result:
    settings: dict[str, Any] = {"rounds": 4, "dtype": "float64", "model": "mlp:4", **options}
    return fedkin.train(federation, settings.pop("model"), method, graph, **settings)


def spread(result: Result, graph: ClientGraph) -> float:
    return total_variation(result.server_rows, graph.align(result.names))


# --- the formula ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", ["sampled", "all"])
def test_one_round_is_the_formula(federation: Federation, graph: ClientGraph, neighbours: str) -> None:
    """Local training as Local does it, then the printed update, client by client, for the clients of the cohort."""
    common: dict[str, Any] = {"lr": 0.1, "epochs": 2, "batch_size": 8}
    start = train(federation, Local(**common), rounds=0).rows
    alone = train(federation, Local(**common), rounds=1, cohort=4)
    method = FedU(**common, eta=0.7, c=0.5, neighbours=neighbours)
    found = train(federation, method, graph, rounds=1, cohort=4)
    trained, step = alone.rows, 0.5 * (0.1 * 2) * 0.7
    cohort = np.flatnonzero((trained != start).any(axis=1))
    assert len(cohort) == 4
    weights = graph.align(federation.names).adjacency.toarray()
    expected = trained.copy()
    for k in cohort:
        for j in cohort if neighbours == "sampled" else range(len(federation)):
            expected[k] -= step * weights[k, j] * (trained[k] - trained[j])
    np.testing.assert_allclose(found.rows, expected, atol=1e-12)


def test_without_pull_it_is_local(federation: Federation, graph: ClientGraph) -> None:
    for zero in (FedU(lr=0.1, eta=0), FedU(lr=0.1, c=0)):
        assert np.array_equal(train(federation, zero, graph).rows, train(federation, Local(lr=0.1)).rows)
    apart = train(federation, FedU(lr=0.1, eta=1.0), empty(federation.names), cohort=3)
    assert np.array_equal(apart.rows, train(federation, Local(lr=0.1), cohort=3).rows)


def test_the_mean_of_the_participants_is_preserved(federation: Federation, graph: ClientGraph) -> None:
    alone = train(federation, Local(lr=0.1), rounds=1, cohort=4).rows
    found = train(federation, FedU(lr=0.1, eta=2.0), graph, rounds=1, cohort=4).rows
    assert not np.allclose(found, alone)
    np.testing.assert_allclose(found.mean(axis=0), alone.mean(axis=0), atol=1e-12)
    stale = train(federation, FedU(lr=0.1, eta=2.0, neighbours="all"), graph, rounds=1, cohort=4).rows
    assert not np.allclose(stale.mean(axis=0), alone.mean(axis=0))


def test_two_clients_closed_form() -> None:
    """The half sum follows the half sum of local training, the half difference shrinks by 1 − 2·c·μ̃·η·a."""
    rng = np.random.default_rng(3)
    pair = Federation.from_arrays({n: (rng.normal(size=(12, 2)), rng.normal(size=12)) for n in ("ann", "bob")})
    graph = ClientGraph([[0, 0.8], [0.8, 0]], ["ann", "bob"])
    alone = train(pair, Local(lr=0.05, epochs=3), model="linear", rounds=1).rows
    found = train(pair, FedU(lr=0.05, epochs=3, eta=0.9), graph, model="linear", rounds=1).rows
    shrink = 1 - 2 * (0.05 * 3) * 0.9 * 0.8
    half, gap = alone.mean(axis=0), (alone[0] - alone[1]) / 2
    np.testing.assert_allclose(found, [half + shrink * gap, half - shrink * gap], atol=1e-12)


def test_the_order_of_clients_does_not_matter(federation: Federation, graph: ClientGraph) -> None:
    order = np.array([3, 1, 5, 0, 4, 2])
    method = FedU(lr=0.1, eta=1.5)
    straight = train(federation, method, graph, cohort=4).rows
    shuffled = train(federation.take(order), method, graph, cohort=4).rows
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-12)


def test_factor_strength_and_weights_act_through_their_product(federation: Federation, graph: ClientGraph) -> None:
    double = ClientGraph(2 * graph.adjacency, graph.names)
    one = train(federation, FedU(lr=0.1, eta=0.6, c=1.0), graph).rows
    for method, used in ((FedU(lr=0.1, eta=1.2, c=0.5), graph), (FedU(lr=0.1, eta=0.6, c=0.5), double)):
        np.testing.assert_allclose(train(federation, method, used).rows, one, atol=1e-12)


def test_more_strength_brings_neighbours_together(federation: Federation, graph: ClientGraph) -> None:
    runs = [train(federation, FedU(lr=0.1, epochs=1, eta=eta), graph) for eta in (0.0, 0.1, 1.0)]
    variation = [spread(result, graph) for result in runs]
    assert variation[0] > variation[1] > variation[2]
    logged = runs[1].history[-1]["log"]
    assert logged["total_variation"] == pytest.approx(variation[1])
    assert logged["step"] == pytest.approx(0.1 * 0.1)
    assert logged["stability"] == pytest.approx(0.1 * 0.1 * graph.lambda_max())


# --- the local unit ---------------------------------------------------------------------------------------------------


def test_what_counts_as_r(federation: Federation) -> None:
    sizes = federation.train.sizes
    assert FedU(lr=0.1, eta=1, epochs=5).step(1, sizes) == pytest.approx(0.5)
    assert FedU(lr=0.1, eta=1, steps=7).step(1, sizes) == pytest.approx(0.7)
    assert FedU(lr=0.1, eta=1, steps=7, local_unit="step").step(1, sizes) == pytest.approx(0.7)
    own = FedU(lr=0.1, eta=1, epochs=2, batch_size=8, local_unit="step").step(1, sizes)
    np.testing.assert_allclose(own, 0.1 * 2 * np.ceil(sizes / 8))
    assert FedU(lr=0.1, epochs=1, eta=1, lr_decay=0.5).step(3, sizes) == pytest.approx(0.1 / 4)


def test_every_client_may_have_its_own_step(federation: Federation, graph: ClientGraph) -> None:
    common: dict[str, Any] = {"lr": 0.1, "epochs": 1, "batch_size": 4}
    alone = train(federation, Local(**common), rounds=1, cohort=5).rows
    found = train(federation, FedU(**common, eta=0.2, local_unit="step"), graph, rounds=1, cohort=5).rows
    start = train(federation, Local(**common), rounds=0).rows
    cohort = np.flatnonzero((alone != start).any(axis=1))
    weights, expected = graph.align(federation.names).adjacency.toarray(), alone.copy()
    steps = 0.1 * 0.2 * np.ceil(federation.train.sizes / 4)
    for k in cohort:
        for j in cohort:
            expected[k] -= steps[k] * weights[k, j] * (alone[k] - alone[j])
    np.testing.assert_allclose(found, expected, atol=1e-12)


# --- where it goes ----------------------------------------------------------------------------------------------------


def regression(clients: int = 5, features: int = 3, seed: int = 1) -> tuple[Federation, ClientGraph]:
    rng = np.random.default_rng(seed)
    sites = {}
    for k in range(clients):
        x = rng.normal(size=(80, features))
        sites[f"site-{k}"] = (x, x @ rng.normal(size=features) + 0.1 * rng.normal(size=80))
    upper = np.triu(rng.random((clients, clients)), 1)
    return Federation.from_arrays(sites, test_fraction=0.25), ClientGraph(upper + upper.T, sites)


def test_the_limit_is_the_stationary_point_up_to_the_step() -> None:
    """Quadratic losses, one full gradient per round: ∇F_k(w_k) + cη Σ_l a_kl (w_k − w_l) = O(μ)."""
    federation, graph = regression()
    eta, c = 0.6, 0.5
    hessians, linear = [], []
    for x, y in federation.train:  # F_k(w) = mean (xᵀw − y)²
        hessians.append(2 * x.T @ x / len(x))
        linear.append(2 * x.T @ y / len(x))
    best = stationary_point(np.array(hessians), np.array(linear), graph, c * eta)
    laplacian = graph.laplacian().toarray()
    slope = np.einsum("kij,kj->ki", hessians, best) - np.array(linear) + c * eta * laplacian @ best
    assert np.abs(slope).max() < 1e-10
    distance = []
    for lr, rounds in ((0.04, 300), (0.02, 600)):
        method = FedU(lr=lr, steps=1, batch_size=1000, eta=eta, c=c)
        found = train(federation, method, graph, model="linear", rounds=rounds, eval_every=rounds).rows
        # At the fixed point W = (I − cμηL)(W − μ∇F(W)) exactly.
        gradient = np.einsum("kij,kj->ki", hessians, found) - np.array(linear)
        step = np.eye(5) - c * lr * eta * laplacian
        np.testing.assert_allclose(step @ (found - lr * gradient), found, atol=1e-9)
        distance.append(np.linalg.norm(found - best))
    assert distance[0] < 0.05 * np.linalg.norm(best)
    assert distance[0] / distance[1] == pytest.approx(2, rel=0.1)


# --- what it says -----------------------------------------------------------------------------------------------------


def test_a_step_beyond_the_bound_is_said_with_the_bound(federation: Federation) -> None:
    pair = complete(federation.names)  # λ_max = 6
    with pytest.warns(UserWarning, match=r"beyond the stable bound 2.*use eta ≤ 3\.33 "):
        result = train(federation, FedU(lr=0.1, epochs=1, eta=4.0), pair, rounds=2)
    assert "stable bound" in result.history[0]["log"]["remarks"][0]
    assert "remarks" not in result.history[1]["log"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(federation, FedU(lr=0.1, epochs=1, eta=3.33), pair, rounds=1)


def test_isolated_clients_are_allowed_and_said(federation: Federation) -> None:
    weights = np.zeros((6, 6))
    weights[0, 1] = weights[1, 0] = 1.0
    graph = ClientGraph(weights, federation.names)
    with pytest.warns(
        UserWarning, match="4 of 6 clients have no neighbour: 'site-2', 'site-3', 'site-4', … train alone"
    ):
        result = train(federation, FedU(lr=0.1, eta=1.0), graph)
    alone = train(federation, Local(lr=0.1)).rows
    np.testing.assert_allclose(result.rows[2:], alone[2:], atol=1e-12)
    assert not np.allclose(result.rows[:2], alone[:2])


def test_divergence_names_the_client_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    federation, graph = regression()
    options: dict[str, Any] = {"model": "linear", "dtype": "float32", "checkpoint_every": 1, "out": tmp_path}
    with (
        pytest.warns(UserWarning, match="stable bound"),
        pytest.raises(FedkinError, match=r"round \d+: .*'site-\d'.*last good checkpoint.*is kept"),
    ):
        train(federation, FedU(lr=0.05, eta=1e6), graph, rounds=30, **options)
    kept = checkpoint.latest(tmp_path)
    assert kept is not None
    state, _, _ = checkpoint.read_checkpoint(kept)
    assert state.round >= 1
    assert torch.isfinite(state.rows).all()


def test_bad_input(federation: Federation) -> None:
    for name in ("eta", "c"):
        with pytest.raises(FedkinError, match=f"fedu: {name} = -1 is not allowed"):
            FedU(**{name: -1})
        with pytest.raises(FedkinError, match=f"fedu: {name} = inf is not allowed"):
            FedU(**{name: float("inf")})
    with pytest.raises(FedkinError, match="neighbours = 'some' is not allowed"):
        FedU(neighbours="some")
    with pytest.raises(FedkinError, match="local_unit = 'batch' is not allowed"):
        FedU(local_unit="batch")
    with pytest.raises(FedkinError, match="no client names"):
        train(federation, FedU(), ClientGraph(np.ones((6, 6)) - np.eye(6)))
    with pytest.warns(UserWarning, match="site-5"):  # a client that came later is joined to all
        train(federation, FedU(), complete(federation.names[:5]), rounds=1)
    lopsided = np.zeros((6, 6))
    lopsided[0, 1] = 1.0
    with pytest.raises(FedkinError, match="not symmetric: 'site-0'→'site-1' is 1"):
        ClientGraph(lopsided, federation.names)
    with pytest.raises(FedkinError, match="weight -1 between clients 'site-0' and 'site-1' is negative"):
        ClientGraph(-(lopsided + lopsided.T), federation.names)


@pytest.mark.parametrize("spec", ["equal", "random", "sizes", "labels"])
def test_the_graphs_of_the_paper(federation: Federation, spec: str) -> None:
    result = train(federation, FedU(lr=0.1, eta=0.5), spec, rounds=2)
    assert result.graph is not None
    assert result.graph.n_edges > 0
    weights = result.graph.adjacency.data
    assert weights.max() <= 1
    assert not np.allclose(result.rows, train(federation, Local(lr=0.1), rounds=2).rows)


def test_equal_weights_are_the_default(federation: Federation) -> None:
    assert np.array_equal(train(federation, FedU()).rows, train(federation, FedU(), "equal").rows)


def test_running_variances_stay_positive(federation: Federation) -> None:
    with pytest.warns(UserWarning, match="stable bound"):
        result = train(federation, FedU(lr=0.1, eta=5.0), complete(federation.names), model="bn-mlp:6", rounds=2)
    modules = [m for model in result.models.values() for m in model.modules() if isinstance(m, nn.BatchNorm1d)]
    assert modules
    assert all((m.running_var > 0).all() for m in modules)
