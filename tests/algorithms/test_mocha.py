"""MOCHA in primal form: the penalty and its gradient, its limits, convex models only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin import Federation, FedkinError, Result
from fedkin.algorithms import Local, Mocha
from fedkin.algorithms.mocha import mean_of_others
from fedkin.diagnostics.theory import stationary_point


def regression(clients: int = 4, samples: int = 60) -> Federation:
    rng = np.random.default_rng(2)
    sites = {}
    for k in range(clients):
        x = rng.normal(size=(samples, 3))
        sites[f"site-{k}"] = (x, x @ rng.normal(size=3) + 0.1 * rng.normal(size=samples))
    return Federation.from_arrays(sites, test_fraction=0.25)


def train(federation: Federation, method: Any, **options: Any) -> Result:
    settings: dict[str, Any] = {"rounds": 3, "dtype": "float64", "model": "linear", **options}
    return fedkin.train(federation, settings.pop("model"), method, **settings)


def test_the_pull_is_the_gradient_of_the_penalty() -> None:
    """Autograd of λ tr(WᵀΩW), Ω = I − 11ᵀ/N, against 2λ(1 − 1/N)(w_k − mean of the others)."""
    n, lam = 5, 0.3
    rows = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    omega = torch.eye(n, dtype=torch.float64) - 1 / n
    torch.testing.assert_close(omega @ omega, omega)  # idempotent: the square in the paper changes nothing
    penalty = lam * torch.trace(rows.T @ omega @ rows)
    torch.testing.assert_close(penalty, lam * (rows - rows.mean(dim=0)).square().sum())
    (slope,) = torch.autograd.grad(penalty, rows)
    torch.testing.assert_close(slope, 2 * lam * (1 - 1 / n) * (rows - mean_of_others(rows)).detach())


def test_one_step_is_the_gradient_of_the_whole_objective() -> None:
    """A round of one full-batch step moves every client down the gradient of Σ f_k + λ Σ ‖w_k − w̄‖²."""
    federation, lam, lr = regression(), 0.4, 0.05
    method = Mocha(lam=lam, lr=lr, steps=1, batch_size=100)
    before, after = (train(federation, method, rounds=rounds).rows for rounds in (2, 3))
    rows = torch.tensor(before, requires_grad=True)
    losses = [(torch.tensor(x) @ row - torch.tensor(y)).square().mean() for row, (x, y) in zip(rows, federation.train)]
    objective = sum(losses) + lam * (rows - rows.mean(dim=0)).square().sum()
    (slope,) = torch.autograd.grad(objective, rows)
    np.testing.assert_allclose(after, before - lr * slope.numpy(), atol=1e-12)


def test_the_limit_minimises_the_objective() -> None:
    federation, lam = regression(), 0.4
    hessians = np.array([2 * x.T @ x / len(x) for x, _ in federation.train])
    linear = np.array([2 * x.T @ y / len(x) for x, y in federation.train])
    everyone = fedkin.graphs.complete(federation.names)  # 2λ(w_k − w̄) = (2λ/N) Σ_l (w_k − w_l)
    best = stationary_point(hessians, linear, everyone, 2 * lam / len(federation))
    method = Mocha(lam=lam, lr=0.05, steps=1, batch_size=100)
    found = train(federation, method, rounds=300, eval_every=300).rows
    np.testing.assert_allclose(found, best, atol=1e-8)


def test_no_penalty_is_local_and_more_brings_clients_together() -> None:
    federation = regression()
    assert np.array_equal(train(federation, Mocha(lam=0)).rows, train(federation, Local()).rows)
    runs = [train(federation, Mocha(lam=lam), rounds=10) for lam in (0.0, 0.1, 1.0)]
    spreads = [float(((r.rows - r.rows.mean(axis=0)) ** 2).sum()) for r in runs]
    assert spreads[0] > spreads[1] > spreads[2]
    assert runs[1].history[-1]["log"]["spread"] == pytest.approx(spreads[1])


def test_the_others_leave_their_mark_in_the_influence() -> None:
    federation = regression()
    assert np.array_equal(train(federation, Mocha(lam=0)).influence, np.eye(4))
    influence = train(federation, Mocha(lam=0.5)).influence
    assert influence is not None
    assert (influence > 0).all()
    np.testing.assert_allclose(influence.sum(axis=1), 1)


def test_a_lone_client_has_nobody_to_follow() -> None:
    federation = regression(clients=1)
    assert np.array_equal(train(federation, Mocha(lam=5.0)).rows, train(federation, Local()).rows)


def test_bad_input() -> None:
    federation = regression()
    with pytest.raises(FedkinError, match="mocha: lam = -1 is not allowed"):
        Mocha(lam=-1)
    with pytest.raises(FedkinError, match=r"convex models only.*this model has 2 linear layers"):
        train(federation, Mocha(), model="mlp:4")
    with pytest.raises(FedkinError, match=r"convex models only.*other layers"):
        train(federation, Mocha(), model=lambda: nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()))
    assert np.isfinite(train(federation, Mocha(), model=lambda: nn.Linear(3, 1)).rows).all()
    with pytest.warns(UserWarning, match="lam = 50 is beyond the stable bound"):
        train(federation, Mocha(lam=50, lr=0.05), rounds=1)
