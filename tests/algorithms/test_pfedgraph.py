from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.local import Local
from fedkin.algorithms.pfedgraph import PFedGraph, collaborate

SETTINGS = {"lr": 0.1, "batch_size": 6}


def solved(difference: np.ndarray, shares: np.ndarray, alpha: float) -> np.ndarray:
    """The quadratic programme of the paper by SciPy's general solver."""
    found = minimize(
        lambda a: a @ difference + alpha * ((a - shares) ** 2).sum(),
        np.full(len(shares), 1 / len(shares)),
        jac=lambda a: difference + 2 * alpha * (a - shares),
        bounds=[(0, 1)] * len(shares),
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(len(a))},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return np.asarray(found.x)


def differences(moved: torch.Tensor) -> np.ndarray:
    m = len(moved)
    return np.array(
        [
            [-float(torch.dot(moved[i], moved[j]) / moved[i].norm() / moved[j].norm()) for j in range(m)]
            for i in range(m)
        ]
    )


@pytest.mark.parametrize("alpha", [0.05, 0.8, 5.0])
def test_the_weights_solve_the_quadratic_programme(alpha: float) -> None:
    moved = torch.randn((6, 9), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    sizes = np.array([3, 10, 5, 7, 1, 20])
    found = collaborate(moved, sizes, alpha)
    for i, d in enumerate(differences(moved)):
        assert np.allclose(found[i], solved(d, sizes / sizes.sum(), alpha), atol=1e-6)


def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any) -> None:
    """Gradients of f − μ Σ_j A_ij cos(w, w_j) by autograd."""
    method = PFedGraph(**SETTINGS, alpha=0.7, lam=0.3)
    done = run(federation, "mlp:4", method, cohort=3)
    rows, others = [plain.initial] * 4, [[] for _ in range(4)]
    for t in (1, 2):
        chosen, trained = method.cohort(t, 3, done.setting), {}
        for k in chosen:
            w = rows[k]
            for x, y in plain.batches(k, method, t):
                v = w.clone().requires_grad_()
                loss = plain.loss(v, x, y)
                for share, other in others[k]:
                    loss = loss - 0.3 * share * torch.nn.functional.cosine_similarity(v, other, dim=0)
                w = w - 0.1 * torch.autograd.grad(loss, v)[0]
            trained[k] = w
        d = differences(torch.stack([trained[k] - plain.initial for k in chosen]))
        sizes = plain.sizes[chosen]
        for i, k in enumerate(chosen):
            a = solved(d[i], sizes / sizes.sum(), 0.7)
            others[k] = [(float(a[j]), trained[other]) for j, other in enumerate(chosen)]
            rows[k] = sum(share * other for share, other in others[k])
    assert torch.allclose(done.state.rows, torch.stack(rows), atol=1e-7)


def test_weights_that_must_be_the_shares_are_fedavg(federation: Any, run: Any) -> None:
    ours = run(federation, "bn-mlp:4", PFedGraph(**SETTINGS, alpha=1e12, lam=0), rounds=3)
    theirs = run(federation, "bn-mlp:4", FedAvg(**SETTINGS), rounds=3)
    assert torch.allclose(ours.state.rows, theirs.state.rows, atol=1e-10)


def test_free_weights_without_a_pull_are_local(federation: Any, run: Any, models: Any) -> None:
    ours = run(federation, "bn-mlp:4", PFedGraph(**SETTINGS, alpha=1e-9, lam=0), rounds=3)
    alone = run(federation, "bn-mlp:4", Local(**SETTINGS), rounds=3)
    assert torch.allclose(models(ours), models(alone), atol=1e-12)
