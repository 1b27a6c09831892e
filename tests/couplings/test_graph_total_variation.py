from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedkin.couplings import GraphTotalVariation, graph_denoiser
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph, complete, sbm


def weighted(clients: int = 9, seed: int = 0) -> ClientGraph:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((clients, clients)) * (rng.random((clients, clients)) < 0.5), 1)
    upper[np.arange(clients - 1), np.arange(1, clients)] += 0.1
    return ClientGraph(upper + upper.T)


def random_rows(clients: int, columns: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(clients, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


SIZES = np.array([1, 9, 3, 4, 2, 8, 5, 7, 6])


def objective(graph: ClientGraph, strength: float, sizes: np.ndarray, psi: np.ndarray, rows: np.ndarray) -> float:
    z = len(graph) * sizes / sizes.sum()
    edges = np.triu(graph.adjacency.toarray())
    i, j = np.nonzero(edges)
    jumps = np.sqrt(((psi[i] - psi[j]) ** 2).sum(axis=1) + 1e-18)
    return float(0.5 * (z[:, None] * (psi - rows) ** 2).sum() + strength * (edges[i, j] * jumps).sum())


@pytest.mark.parametrize("columns", [2, 30])
@pytest.mark.parametrize("strength", [0.05, 0.3])
def test_nothing_beats_it_at_its_own_objective(columns: int, strength: float) -> None:
    graph, rows = weighted(), random_rows(9, columns)
    ours = GraphTotalVariation(graph, strength, SIZES).apply(rows).numpy()
    value = objective(graph, strength, SIZES, ours, rows.numpy())

    def flat(psi: np.ndarray) -> float:
        return objective(graph, strength, SIZES, psi.reshape(9, columns), rows.numpy())

    general = minimize(flat, ours.ravel() + 1e-3, method="L-BFGS-B", options={"maxiter": 300})
    assert value <= general.fun + 1e-7
    rng = np.random.default_rng(0)
    assert all(value <= flat(ours.ravel() + 1e-3 * rng.normal(size=9 * columns)) for _ in range(20))


def test_two_clients_closed_form() -> None:
    """Each moves towards the other by s·a until they meet."""
    pair, rows = ClientGraph([[0, 2.0], [2.0, 0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    near = GraphTotalVariation(pair, 0.5).apply(rows)
    torch.testing.assert_close(near, torch.tensor([[2.4, 3.2], [0.6, 0.8]], dtype=torch.float64), atol=1e-4, rtol=0)
    met = GraphTotalVariation(pair, 1.3).apply(rows)
    torch.testing.assert_close(met, rows.mean(dim=0).expand(2, 2), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_limits(dtype: torch.dtype) -> None:
    graph, rows = weighted(), random_rows(9, 40, dtype)
    before = rows.clone()
    assert torch.equal(GraphTotalVariation(graph, 0.0, SIZES).apply(rows), rows)
    out = GraphTotalVariation(graph, 1e4, SIZES).apply(rows)
    assert out.dtype == dtype
    mean = torch.from_numpy(SIZES / SIZES.sum()).to(dtype) @ rows
    torch.testing.assert_close(out, mean.expand(9, -1), atol=1e-4, rtol=0)
    assert torch.equal(rows, before)


def test_clusters_keep_their_own_model() -> None:
    graph = sbm(np.repeat([0, 1], 10), 0.9, 0.05, seed=0)
    rows = random_rows(20, 50) * 0.1
    rows[10:] += 2.0
    out = GraphTotalVariation(graph, 0.3).apply(rows)
    assert float(out[:10].std(dim=0).max()) < 1e-3
    assert float(out[10:].std(dim=0).max()) < 1e-3
    assert float((out[0] - out[10]).abs().min()) > 1.0


def test_relabelling_and_components() -> None:
    graph, rows = weighted(), random_rows(9, 4)
    order = np.random.default_rng(0).permutation(9)
    moved = GraphTotalVariation(graph.take(order), 0.2, SIZES[order]).apply(rows[order])
    torch.testing.assert_close(moved, GraphTotalVariation(graph, 0.2, SIZES).apply(rows)[order], atol=1e-4, rtol=0)
    alone = ClientGraph(np.zeros((9, 9)))
    assert torch.equal(GraphTotalVariation(alone, 5.0).apply(rows), rows)


def test_it_has_no_matrix_and_refuses_bad_input() -> None:
    graph = complete("abc")
    denoiser = graph_denoiser(graph, "tv", 0.5, [1, 2, 3])
    assert isinstance(denoiser, GraphTotalVariation)
    with pytest.raises(FedkinError, match="not linear"):
        denoiser.matrix()
    for strength in (-1.0, float("nan")):
        with pytest.raises(FedkinError, match="strength"):
            GraphTotalVariation(graph, strength)
    with pytest.raises(FedkinError, match="fidelity"):
        graph_denoiser(graph, "tv", 0.5, fidelity="literal")
    with pytest.raises(FedkinError, match="did you mean 'tikhonov'"):
        graph_denoiser(graph, "tikonov", 0.5)
