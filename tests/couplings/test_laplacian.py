from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedkin.compute.memory import uninitialised
from fedkin.couplings import LaplacianStep, safe_step, stability, total_variation
from fedkin.couplings.sparse import ClientMatrix
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph, complete, knn
from fedkin.graphs.build import build

DTYPES = [torch.float32, torch.float64]


def weighted(clients: int = 30, seed: int = 0) -> ClientGraph:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((clients, clients)) * (rng.random((clients, clients)) < 0.3), 1)
    return ClientGraph(upper + upper.T)


def random_rows(clients: int, columns: int = 7, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(clients, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def by_the_book(
    graph: ClientGraph, step: float, rows: torch.Tensor, cohort: list[int], neighbours: str
) -> torch.Tensor:
    """The formula of the paper, client by client, neighbour by neighbour."""
    adjacency, out = graph.adjacency.toarray(), rows.clone()
    for k in cohort:
        for j in range(len(graph)):
            if neighbours == "all" or j in cohort:
                out[k] = out[k] - step * adjacency[k, j] * (rows[k] - rows[j])
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neighbours", ["sampled", "all"])
@pytest.mark.parametrize("cohort", [None, [4], [9, 2, 17, 3, 28], []])
def test_against_the_formula(dtype: torch.dtype, neighbours: str, cohort: list[int] | None) -> None:
    graph, rows = weighted(), random_rows(30, dtype=dtype)
    before = rows.clone()
    step = LaplacianStep(graph, 0.07, cohort, neighbours)  # type: ignore[arg-type]
    out = step.apply(rows)
    everyone = list(range(30)) if cohort is None else cohort
    torch.testing.assert_close(out, by_the_book(graph, 0.07, rows, everyone, neighbours))
    assert torch.equal(rows, before)
    assert out.data_ptr() != rows.data_ptr()
    outside = [k for k in range(30) if k not in everyone]
    assert torch.equal(out[outside], rows[outside])
    np.testing.assert_allclose(step.matrix() @ rows.double().numpy(), out.double().numpy(), atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparse_equals_dense(dtype: torch.dtype) -> None:
    graph = knn(np.random.default_rng(0).random((700, 3)), 6)
    step, rows = LaplacianStep(graph, 0.05), random_rows(700, 40, dtype)
    assert not step._operator.dense
    laplacian = torch.from_numpy(graph.laplacian().toarray()).to(dtype)
    torch.testing.assert_close(step.apply(rows), rows - 0.05 * laplacian @ rows)
    torch.testing.assert_close(step.apply(rows.T.contiguous().T), step.apply(rows))  # any memory layout
    out = torch.empty_like(rows)
    assert step.apply(rows, out=out) is out
    torch.testing.assert_close(out, step.apply(rows))


def test_the_mean_of_the_cohort_is_preserved_and_differences_shrink() -> None:
    graph, rows, cohort = weighted(), random_rows(30), [1, 5, 6, 20, 25]
    out = LaplacianStep(graph, 0.5 * safe_step(graph), cohort).apply(rows)
    torch.testing.assert_close(out[cohort].mean(dim=0), rows[cohort].mean(dim=0))
    full = LaplacianStep(graph, 0.5 * safe_step(graph)).apply(rows)
    torch.testing.assert_close(full.mean(dim=0), rows.mean(dim=0))
    assert total_variation(full, graph) < total_variation(rows, graph)


def test_two_clients_closed_form() -> None:
    pair = ClientGraph([[0, 0.8], [0.8, 0]])
    a, b = 3.0, -1.0
    out = LaplacianStep(pair, 0.25).apply(torch.tensor([[a], [b]], dtype=torch.float64))
    shrink = 1 - 2 * 0.25 * 0.8
    assert out[:, 0].tolist() == pytest.approx([(a + b) / 2 + shrink * (a - b) / 2, (a + b) / 2 - shrink * (a - b) / 2])


def test_relabelling_clients_permutes_results() -> None:
    graph, rows = weighted(), random_rows(30)
    order = np.random.default_rng(5).permutation(30)
    torch.testing.assert_close(
        LaplacianStep(graph.take(order), 0.1).apply(rows[order]), LaplacianStep(graph, 0.1).apply(rows)[order]
    )


def test_zero_step_and_isolated_clients_change_nothing() -> None:
    rows = random_rows(30)
    assert torch.equal(LaplacianStep(weighted(), 0.0).apply(rows), rows)
    assert torch.equal(LaplacianStep(ClientGraph(np.zeros((30, 30))), 0.3).apply(rows), rows)


def test_stability_bound_separates_shrinking_from_growing() -> None:
    graph = weighted()
    assert stability(graph, safe_step(graph)) == pytest.approx(2)
    assert safe_step(ClientGraph(np.zeros((2, 2)))) == float("inf")
    roughest = torch.from_numpy(graph.eigen()[1][:, -1:].copy())
    for factor, grows in ((0.99, False), (1.01, True)):
        out = LaplacianStep(graph, factor * safe_step(graph)).apply(roughest)
        assert (out.norm() > roughest.norm()) == grows


def test_total_variation_is_the_trace() -> None:
    graph, rows = weighted(), random_rows(30)
    expected = torch.trace(rows.T @ torch.from_numpy(graph.laplacian().toarray()) @ rows)
    assert total_variation(rows, graph) == pytest.approx(float(expected))
    assert total_variation(rows[:1].expand(30, -1), graph) == 0


def test_bad_input() -> None:
    graph = complete("abc")
    for step in (-0.1, float("nan"), float("inf")):
        with pytest.raises(FedkinError, match="step must be"):
            LaplacianStep(graph, step)
    with pytest.raises(FedkinError, match="did you mean 'sampled'"):
        LaplacianStep(graph, 0.1, neighbours="sample")  # type: ignore[arg-type]
    with pytest.raises(FedkinError, match="twice"):
        LaplacianStep(graph, 0.1, cohort=[1, 1])


def test_large_results_live_in_their_own_memory() -> None:
    big = uninitialised((1_100, 2**14), torch.float32)  # 69 MiB: on huge pages where the system has them
    big.fill_(1.0)
    again = uninitialised((1_100, 2**14), torch.float32)
    assert big.data_ptr() != again.data_ptr()
    assert float(big.sum()) == big.numel()


def test_a_dense_graph_uses_one_gemm() -> None:
    assert ClientMatrix(build("random", [str(k) for k in range(200)], disclosed=lambda _: None, seed=0).adjacency).dense
    assert not ClientMatrix(knn(np.random.default_rng(0).random((200, 2)), 3).adjacency).dense


@pytest.mark.parametrize(("clients", "columns"), [(100, 3000), (700, 1001), (9000, 70)])
def test_a_sparse_matrix_takes_columns_a_few_at_a_time_and_gives_the_same_product(clients: int, columns: int) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(0, clients, (2, 5 * clients))
    matrix = sp.csr_array((rng.random(5 * clients), (ends[0], ends[1])), shape=(clients, clients))
    rows = torch.from_numpy(rng.standard_normal((clients, columns)))
    made = ClientMatrix(matrix)
    assert not made.dense
    due = torch.from_numpy(matrix @ rows.numpy())
    assert torch.allclose(made.times(rows), due, rtol=0, atol=1e-12)
    into = torch.full((clients, 2 * columns), torch.nan, dtype=rows.dtype)[:, ::2].contiguous()
    assert made.times(rows, into) is into
    assert torch.allclose(into, due, rtol=0, atol=1e-12)


@pytest.mark.parametrize("neighbours", ["sampled", "all"])
def test_where_all_pairs_weigh_the_same_their_part_is_taken_out(neighbours: str) -> None:
    graph, rows = complete([str(k) for k in range(200)]), random_rows(200, columns=3001)
    few = np.arange(0, 200, 3)
    everyone, some = LaplacianStep(graph, step=0.003), LaplacianStep(graph, 0.003, few, neighbours)  # type: ignore[arg-type]
    for coupling in (everyone, some):
        assert coupling._operator.common == pytest.approx(0.003)
        assert not coupling._operator.dense
        due = torch.from_numpy(coupling.sparse().toarray()) @ rows
        assert torch.allclose(coupling.apply(rows), due, rtol=0, atol=1e-12)
