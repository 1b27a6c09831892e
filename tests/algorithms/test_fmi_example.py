"""Weather stations as in the course of GTVMin's authors: linear models, a graph of near stations, against a convex solver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fedkin import data, train
from fedkin.algorithms.networklasso import NetworkLasso
from fedkin.federation import Federation

STATIONS, LAM = 30, 0.1


class Problem:
    """min_W Σ_k mean (x w_k − y)² + λ Σ_edges a_kl ‖w_k − w_l‖, in numpy."""

    def __init__(self, federation: Federation) -> None:
        clients = range(len(federation))
        self.x = np.stack([federation.train[k][0] for k in clients]).astype(float)
        self.y = np.stack([federation.train[k][1].ravel() for k in clients]).astype(float)
        assert federation.graph is not None
        adjacency = federation.graph.adjacency.toarray()
        self.i, self.j = np.triu(adjacency).nonzero()
        self.a = adjacency[self.i, self.j]

    def value(self, w: np.ndarray, smooth: float = 0.0) -> tuple[float, np.ndarray]:
        """The objective and its gradient; norms are √(‖·‖² + smooth²)."""
        rest = np.einsum("knd,kd->kn", self.x, w) - self.y
        slope = 2 * np.einsum("kn,knd->kd", rest, self.x) / self.x.shape[1]
        apart = w[self.i] - w[self.j]
        norm = np.sqrt((apart**2).sum(axis=1) + smooth**2)
        pull = (LAM * self.a / np.maximum(norm, 1e-300))[:, None] * apart
        np.add.at(slope, self.i, pull)
        np.add.at(slope, self.j, -pull)
        return float((rest**2).mean(axis=1).sum() + LAM * (self.a * norm).sum()), slope.ravel()

    def solved(self) -> float:
        """The minimum by quasi-Newton steps on a smoothed objective: scipy knows nothing of graphs or duals."""
        shape = len(self.x), self.x.shape[2]
        how = {"maxiter": 20_000, "maxfun": 40_000, "maxcor": 50, "ftol": 1e-15, "gtol": 1e-10}
        found = minimize(lambda w: self.value(w.reshape(shape), 1e-5), np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=how)  # fmt: skip
        return self.value(found.x.reshape(shape))[0]


@pytest.mark.real_data
def test_the_stations_problem_is_solved_as_by_scipy(real_data: Path) -> None:
    federation = data.load("fmi", clients=STATIONS, seed=0)
    problem = Problem(federation)
    best = problem.solved()
    method = NetworkLasso(lr=0.03, steps=20, batch_size=100, lam=LAM, update="primal-dual", primal=10.0)
    how: dict[str, Any] = {"rounds": 250, "eval_every": 250, "seed": 0, "dtype": "float64"}
    result = train(federation, "linear", method, **how)
    assert best <= problem.value(result.rows)[0] * (1 + 1e-9)
    assert problem.value(result.rows)[0] == pytest.approx(best, rel=2e-3)
    alone = train(federation, "linear", NetworkLasso(lr=0.03, steps=20, batch_size=100, lam=0.0), **how)
    assert result.summary("pre")["mean"] < alone.summary("pre")["mean"]
