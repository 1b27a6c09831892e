"""Diagnostics of FedU's theory against closed forms and dense Hessians."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import fedkin
from fedkin import ClientGraph, Federation, FedkinError, theory
from fedkin.algorithms import DFedU, FedU, PFedMe
from fedkin.graphs import complete, empty
from fedkin.models import ModelSpec
from fedkin.streams import Streams


def regression(clients: int = 4, features: int = 3, growth: int = 1) -> Federation:
    rng = np.random.default_rng(1)
    sites = {}
    for k in range(clients):
        x = rng.normal(size=(60, features)) * (1 + growth * k)
        sites[f"site-{k}"] = (x, x @ rng.normal(size=features))
    return Federation.from_arrays(sites, test_fraction=0.25)


def classification() -> Federation:
    rng = np.random.default_rng(1)
    sites = {f"site-{k}": (rng.normal(size=(20, 3)) + k, rng.integers(0, 2, 20)) for k in range(3)}
    return Federation.from_arrays(sites)


def test_smoothness_of_least_squares_is_the_largest_eigenvalue() -> None:
    federation = regression()
    found = theory.diagnose(federation, "linear", FedU(weight_decay=0.3), iterations=300)
    for k, (x, _) in enumerate(federation.train):
        assert found.smoothness[k] == pytest.approx(np.linalg.eigvalsh(2 * x.T @ x / len(x))[-1] + 0.3, rel=1e-6)
    assert found.beta == found.smoothness.max()


@pytest.mark.parametrize("model", ["mlr", "mlp:3", "bn-mlp:3"])
def test_smoothness_is_the_norm_of_the_dense_hessian(model: str) -> None:
    federation = classification()
    found = theory.diagnose(federation, model, FedU(), iterations=300, seed=5)
    spec = ModelSpec.of(model, federation.task, torch.float64)
    row = spec.initial_row(Streams(5))
    module = spec.module(row)

    for k, (x, y) in enumerate(federation.train):

        def loss(flat: torch.Tensor, x: np.ndarray = x, y: np.ndarray = y) -> torch.Tensor:
            tensors = {slot.name: flat[slot.start : slot.stop].view(slot.shape) for slot in spec.layout.parameters}
            return nn.functional.cross_entropy(functional_call(module, tensors, (torch.tensor(x),)), torch.tensor(y))

        dense = torch.autograd.functional.hessian(loss, row[: spec.layout.n_parameters])
        assert found.smoothness[k] == pytest.approx(float(torch.linalg.eigvalsh(dense).abs().max()), rel=1e-2)


def test_norm_of_the_laplacian_condition_and_safe_strength() -> None:
    federation = regression()
    graph = complete(federation.names, 0.5)  # λ_max = 4 · 0.5
    loose = theory.diagnose(federation, "linear", FedU(eta=0.1, lr=0.01, epochs=5), graph)
    assert loose.rho == pytest.approx(2)
    assert not loose.condition
    assert loose.stability == pytest.approx(0.01 * 5 * 0.1 * 2)
    assert loose.safe_eta == pytest.approx(2 / (0.01 * 5 * 2))
    needed = 2 * loose.beta / loose.rho
    assert theory.diagnose(federation, "linear", DFedU(eta=1.01 * needed, lr=1e-4), graph).condition
    assert not theory.diagnose(federation, "linear", DFedU(eta=0.99 * needed, lr=1e-4), graph).condition
    assert "does not hold" in str(loose)
    assert theory.diagnose(federation, "linear", FedU(eta=0.0), graph).safe_eta == float("inf")


def test_distance_to_the_stationary_point_falls_along_a_run() -> None:
    federation = regression(growth=0)
    graph = complete(federation.names)
    method = FedU(eta=0.5, lr=0.01, steps=1, batch_size=100)
    distance = []
    for rounds in (0, 10, 600):
        rows = fedkin.train(federation, "linear", method, graph, rounds=rounds, dtype="float64", eval_every=5000).rows
        distance.append(theory.diagnose(federation, "linear", method, graph, rows=rows).distance)
    assert None not in distance
    assert distance[0] > distance[1] > distance[2]  # type: ignore[operator]
    assert distance[2] < 1e-2  # type: ignore[operator]
    assert theory.diagnose(classification(), "mlr", FedU()).distance is None


def test_stationary_point_closed_forms() -> None:
    """Without coupling each client's own minimiser, with endless coupling that of the sum; in between, the condition."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(5, 3, 6))
    hessians, linear = factors @ factors.transpose(0, 2, 1), rng.normal(size=(5, 3))
    graph = complete([f"c{k}" for k in range(5)])
    own = np.linalg.solve(hessians, linear[:, :, None])[:, :, 0]
    np.testing.assert_allclose(theory.stationary_point(hessians, linear, graph, 0.0), own)
    common = np.linalg.solve(hessians.sum(axis=0), linear.sum(axis=0))
    np.testing.assert_allclose(
        theory.stationary_point(hessians, linear, graph, 1e8), np.tile(common, (5, 1)), atol=1e-5
    )
    point = theory.stationary_point(hessians, linear, graph, 0.7)
    slope = np.einsum("kij,kj->ki", hessians, point) - linear + 0.7 * graph.laplacian().toarray() @ point
    np.testing.assert_allclose(slope, 0, atol=1e-10)


def test_bad_input() -> None:
    federation = regression()
    with pytest.raises(FedkinError, match=r"rows have shape \(2, 2\); this model and federation need \(4, 3\)"):
        theory.diagnose(federation, "linear", FedU(), rows=np.zeros((2, 2)))
    with pytest.raises(FedkinError, match="iterations is 0"):
        theory.diagnose(federation, "linear", FedU(), iterations=0)
    flat = np.zeros((2, 1, 1))
    with pytest.raises(FedkinError, match="not unique"):
        theory.stationary_point(flat, np.ones((2, 1)), empty(["a", "b"]), 1.0)
    lone = ClientGraph([[0, 1], [1, 0]])
    assert np.isfinite(theory.stationary_point(np.array([[[1.0]], [[0.0]]]), np.ones((2, 1)), lone, 1.0)).all()


def test_the_condition_counts_the_factor_c() -> None:
    known = {"rho": 4.0, "smoothness": np.array([1.0]), "eta": 1.0, "stability": 0.0, "safe_eta": 1.0}
    assert theory.Diagnosis(**known).condition  # type: ignore[arg-type]
    assert not theory.Diagnosis(**known, c=0.5).condition  # type: ignore[arg-type]


def test_inner_steps_of_pfedme_settle_below_the_bound_that_is_measured() -> None:
    """Least squares: β_k = 2·λ_max(XᵀX)/n. Just below 2/(λ + β) the inner steps of a run settle, just above they grow."""
    federation = regression(clients=1)
    x, y = federation.train[0]
    found = theory.inner_steps(federation, "linear", PFedMe(lam=3.0, personal_lr=0.02), iterations=500)
    beta = np.linalg.eigvalsh(2 * x.T @ x / len(x))[-1]
    assert found.smoothness == pytest.approx([beta], rel=1e-6)
    assert found.factor == pytest.approx([0.02 * (3.0 + beta)], rel=1e-6)
    assert "steps grow at 0 of 1 clients" in str(found)
    moved = []
    for times in (0.97, 1.03):
        method = PFedMe(
            lam=3.0, personal_lr=times * found.largest_rate, inner_steps=2000, batch_size=100, epochs=1, halvings=0
        )
        told = theory.inner_steps(federation, "linear", method, iterations=500)
        assert (told.factor < 2).all() == (times < 1)
        moved.append(np.linalg.norm(fedkin.train(federation, "linear", method, rounds=1, dtype="float64").rows))
    settled, grown = moved
    assert settled < 2 * np.linalg.norm(np.linalg.lstsq(x, y, rcond=None)[0])
    assert grown > 1e6 * settled


def test_a_client_of_steep_loss_is_told_apart() -> None:
    found = theory.inner_steps(regression(growth=3), "linear", PFedMe())
    assert found.smoothness.argmax() == 3
    assert 0 < (found.factor >= 2).sum() < 4
    assert found.largest_rate == pytest.approx(2 / (1 + found.smoothness.max()))
