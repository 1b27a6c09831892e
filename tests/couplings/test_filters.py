from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.couplings import GraphFilter, denoiser, filters, graph_denoiser
from fedkin.couplings.denoisers import find_denoiser, hard, heat, soft, tikhonov
from fedkin.couplings.solvers import Ordered
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph, knn

K = 14
SIZES = np.random.default_rng(2).integers(5, 4_000, K)
ZETA = SIZES / SIZES.sum()


def own(lambdas: np.ndarray, strength: float) -> np.ndarray:
    return 1 / (1 + strength * lambdas) ** 2


def weighted(clients: int = K, seed: int = 0, density: float = 0.5) -> ClientGraph:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((clients, clients)) * (rng.random((clients, clients)) < density), 1)
    upper[np.arange(clients - 1), np.arange(1, clients)] += 0.1  # a path keeps it connected
    return ClientGraph(upper + upper.T)


def random_rows(clients: int = K, columns: int = 6, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(clients, columns, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


LINEAR = [("soft", 0.3), ("soft", (0.2, 0.7)), ("tikhonov", 0.4), ("heat", 0.2), ("hard", 4), (own, 0.3)]


@pytest.mark.parametrize(("name", "strength"), LINEAR)
@pytest.mark.parametrize("sizes", [None, SIZES])
def test_rows_of_the_operator_sum_to_one(name, strength, sizes) -> None:
    matrix = GraphFilter(weighted(), name, strength, sizes).matrix()
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "none"), [("soft", 0.0), ("tikhonov", 0.0), ("heat", 0.0), ("hard", K), (own, 0.0)])
def test_no_strength_is_local_training(name, none, dtype: torch.dtype) -> None:
    rows = random_rows(dtype=dtype)
    out = GraphFilter(weighted(), name, none, SIZES).apply(rows)
    assert out.dtype == dtype
    torch.testing.assert_close(out, rows)


@pytest.mark.parametrize(("name", "full"), [("soft", 1e12), ("tikhonov", 1e12), ("heat", 1e4), ("hard", 1), (own, 1e6)])
def test_full_strength_is_the_size_weighted_average(name, full) -> None:
    rows = random_rows()
    mean = torch.from_numpy(ZETA) @ rows
    out = GraphFilter(weighted(), name, full, SIZES).apply(rows)
    torch.testing.assert_close(out, mean.expand(K, -1), atol=1e-9, rtol=1e-9)
    plain = GraphFilter(weighted(), name, full, SIZES, fidelity="none").apply(rows)
    torch.testing.assert_close(plain, rows.mean(dim=0).expand(K, -1), atol=1e-6, rtol=1e-6)


def test_soft_minimises_the_stated_objective() -> None:
    graph, rows = weighted(), random_rows()
    laplacian = torch.from_numpy(graph.laplacian().toarray())
    psi = GraphFilter(graph, "soft", (0.2, 0.05), SIZES).apply(rows).requires_grad_()
    z = torch.from_numpy(K * ZETA)[:, None]
    objective = (z * (psi - rows) ** 2).sum() + 0.2 * torch.trace(psi.T @ laplacian @ psi)
    objective = objective + 0.05 * (laplacian @ psi).square().sum()
    (gradient,) = torch.autograd.grad(objective, psi)
    assert float(gradient.abs().max()) < 1e-10


def test_hard_is_the_weighted_projection_on_the_smooth_modes() -> None:
    graph, rows = weighted(), random_rows()
    smooth = graph.eigen()[1][:, :5]
    root = np.sqrt(ZETA)[:, None]
    coefficients = np.linalg.lstsq(root * smooth, root * rows.numpy(), rcond=None)[0]
    np.testing.assert_allclose(
        GraphFilter(graph, "hard", 5, SIZES).apply(rows).numpy(), smooth @ coefficients, atol=1e-10
    )


@pytest.mark.parametrize(("name", "strength"), LINEAR)
def test_equal_sizes_give_the_plain_filter(name, strength) -> None:
    graph = weighted()
    same = GraphFilter(graph, name, strength, np.full(K, 600)).matrix()
    np.testing.assert_allclose(same, GraphFilter(graph, name, strength, fidelity="none").matrix(), atol=1e-10)


@pytest.mark.parametrize(("name", "strength"), LINEAR)
def test_the_fidelity_options(name, strength) -> None:
    graph = weighted()
    plain = GraphFilter(graph, name, strength, SIZES, "none").matrix()
    np.testing.assert_allclose(GraphFilter(graph, name, strength, SIZES, "literal").matrix(), plain * ZETA, atol=1e-12)
    normalised = plain * ZETA / (plain @ ZETA)[:, None]
    np.testing.assert_allclose(
        GraphFilter(graph, name, strength, SIZES, "row_normalised").matrix(), normalised, rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize(
    ("name", "strength", "kernel"),
    [
        ("soft", 0.3, lambda x: 1 / (1 + 0.3 * x + 0.3 * x**2)),
        ("heat", 0.2, lambda x: np.exp(-0.2 * x)),
        ("tikhonov", 0.4, lambda x: 1 / (1 + 0.4 * x)),
    ],
)
def test_agrees_with_pygsp(name, strength, kernel) -> None:
    pygsp = pytest.importorskip("pygsp")
    graph, rows = weighted(), random_rows(columns=1)
    theirs = pygsp.graphs.Graph(graph.adjacency.toarray())
    theirs.compute_fourier_basis()
    expected = pygsp.filters.Filter(theirs, kernel).filter(rows[:, 0].numpy(), method="exact")
    out = GraphFilter(graph, name, strength, fidelity="none").apply(rows)
    np.testing.assert_allclose(out[:, 0].numpy(), expected, atol=1e-10)


def test_eigen_form_equals_linear_solve() -> None:
    graph, rows = weighted(), random_rows()
    laplacian = graph.laplacian().toarray()
    solved = np.linalg.solve(np.eye(K) + 0.3 * laplacian + 0.3 * laplacian @ laplacian, rows.numpy())
    np.testing.assert_allclose(GraphFilter(graph, "soft", 0.3).apply(rows).numpy(), solved, atol=1e-12)
    doubled = np.linalg.solve(np.eye(K) + 0.6 * laplacian + 0.6 * laplacian @ laplacian, rows.numpy())
    np.testing.assert_allclose(GraphFilter(graph, "soft", 0.3, factor2=True).apply(rows).numpy(), doubled, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1_000), st.permutations(range(K)), st.sampled_from(LINEAR))
def test_relabelling_clients_permutes_results(seed: int, order: list[int], which) -> None:
    graph, rows, (name, strength) = weighted(seed=seed), random_rows(), which
    moved = GraphFilter(graph.take(order), name, strength, SIZES[order]).apply(rows[order])
    torch.testing.assert_close(
        moved, GraphFilter(graph, name, strength, SIZES).apply(rows)[order], atol=1e-8, rtol=1e-8
    )


@pytest.mark.parametrize(("name", "strength"), [*LINEAR, ("hard", 1)])
def test_components_do_not_interact(name, strength) -> None:
    one, two = weighted(6, 1), weighted(8, 2)
    both = ClientGraph(sp.block_diag([one.adjacency, two.adjacency]))
    matrix = GraphFilter(both, name, strength, SIZES).matrix()
    np.testing.assert_allclose(matrix[:6, 6:], 0, atol=1e-10)
    np.testing.assert_allclose(matrix[6:, :6], 0, atol=1e-10)
    if (name, strength) == ("hard", 1):  # the whole zero eigenspace is kept: one weighted mean per component
        np.testing.assert_allclose(matrix[0, :6], SIZES[:6] / SIZES[:6].sum(), atol=1e-10)


# ---- at scale --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def medium() -> ClientGraph:
    rng = np.random.default_rng(0)
    graph = knn(rng.random((700, 5)), 6, weights="gaussian")
    return ClientGraph(sp.block_diag([graph.adjacency, knn(rng.random((40, 2)), 3).adjacency, [[0]]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "strength"),
    [
        ("soft", 0.0005),
        ("soft", 1.0),
        ("soft", 1e4),
        ("tikhonov", 2.0),
        ("heat", 3.0),
        ("hard", 9),
        ("hard", 1),
        (own, 1.0),
    ],
)
@pytest.mark.parametrize("fidelity", ["size_weighted", "none", "literal"])
def test_sparse_solvers_agree_with_the_dense_filter(
    medium: ClientGraph, monkeypatch: pytest.MonkeyPatch, name, strength, fidelity, dtype: torch.dtype
) -> None:
    sizes = np.random.default_rng(1).integers(10, 2_000, len(medium))
    rows = random_rows(len(medium), 20, dtype)
    dense = GraphFilter(medium, name, strength, sizes, fidelity).apply(rows.double())
    monkeypatch.setattr(filters, "DENSE_LIMIT", 100)
    monkeypatch.setattr(ClientGraph, "eigen", None)  # the large path must never ask for it
    sparse = GraphFilter(medium, name, strength, sizes, fidelity)
    before = rows.clone()
    out = sparse.apply(rows)
    assert out.dtype == dtype
    assert torch.equal(rows, before)
    assert float((out.double() - dense).abs().max() / dense.abs().max()) < 1e-5


def test_traces_agree(medium: ClientGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = GraphFilter(medium, "soft", 0.01)
    assert exact.trace() == pytest.approx(exact.response().mean(), rel=1e-10)
    expected = exact.trace()
    assert GraphFilter(medium, "soft", 0.0).trace() == pytest.approx(1)
    monkeypatch.setattr(filters, "DENSE_LIMIT", 100)
    assert GraphFilter(medium, "soft", 0.01).trace() == pytest.approx(expected, rel=0.02)


def test_a_graph_of_many_clients_forms_nothing_square() -> None:
    graph = knn(np.random.default_rng(0).random((20_000, 3)), 5)  # 20,000² float64 would be 3.2 GB
    rows = random_rows(20_000, 12, torch.float32)
    laplacian = graph.laplacian()
    out = GraphFilter(graph, "soft", 0.05).apply(rows).double().numpy()
    residual = out + 0.05 * (laplacian @ out) + 0.05 * (laplacian @ (laplacian @ out)) - rows.double().numpy()
    assert abs(residual).max() < 1e-4
    torch.testing.assert_close(torch.from_numpy(out).mean(dim=0), rows.double().mean(dim=0), atol=1e-5, rtol=0)
    with pytest.raises(FedkinError, match="limit 500"):
        GraphFilter(graph, "hard", 600).apply(rows)


def test_clients_are_renumbered_and_put_back(medium: ClientGraph) -> None:
    rows = random_rows(len(medium), 30)
    ordered = Ordered(medium.laplacian())
    out = ordered.blocked(lambda block: torch.from_numpy(ordered.laplacian @ block.numpy()), rows)
    np.testing.assert_allclose(out.numpy(), medium.laplacian() @ rows.numpy(), atol=1e-12)


# ---- plugging in -----------------------------------------------------------------------------------------------------


def test_responses() -> None:
    lambdas = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(soft(lambdas, 0.5), [1, 1 / 2, 1 / 4])
    np.testing.assert_allclose(soft(lambdas, (1.0, 0.0)), tikhonov(lambdas, 1.0))
    np.testing.assert_allclose(heat(lambdas, 2.0), np.exp([0, -2, -4]))
    np.testing.assert_allclose(hard(lambdas, 2), [1, 1, 0])
    np.testing.assert_allclose(hard(np.array([0.0, 0.0, 2.0]), 1), [1, 1, 0])


def test_a_users_denoiser_by_name_and_as_a_function() -> None:
    denoiser("test-own")(own)
    graph, rows = weighted(), random_rows()
    torch.testing.assert_close(
        graph_denoiser(graph, "test-own", 0.3, SIZES).apply(rows), graph_denoiser(graph, own, 0.3, SIZES).apply(rows)
    )
    assert find_denoiser("test-own").name == "test-own"


@pytest.mark.parametrize("strength", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["soft", "heat", "tikhonov", own])
def test_impossible_strengths_are_refused(name, strength: float) -> None:
    with pytest.raises(FedkinError, match="strength must be finite and not negative"):
        GraphFilter(weighted(), name, strength)


@pytest.mark.parametrize("rank", [0, K + 1, 2.5, float("nan"), -3])
def test_ranks_outside_the_clients_are_refused(rank: float) -> None:
    with pytest.raises(FedkinError, match=f"from 1 to {K}"):
        GraphFilter(weighted(), "hard", rank)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda lambdas, strength: 1.0, "one value per λ"),
        (lambda lambdas, strength: lambdas[:-1], "one value per λ"),
        (
            lambda lambdas, strength: np.divide(1, lambdas, out=np.full_like(lambdas, np.inf), where=lambdas > 0),
            "finite",
        ),
        (lambda lambdas, strength: float(lambdas), "failed"),
        (lambda lambdas, strength: "text", "failed"),
    ],
)
@pytest.mark.parametrize("limit", [3_000, 5])
def test_a_users_function_that_misbehaves_is_refused_at_construction(
    function, words: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "DENSE_LIMIT", limit)
    with pytest.raises(FedkinError, match=words):
        GraphFilter(weighted(), function, 0.5)


def test_other_bad_input() -> None:
    graph = weighted()
    with pytest.raises(FedkinError, match="did you mean 'soft'"):
        GraphFilter(graph, "sofft", 0.5)
    with pytest.raises(FedkinError, match="unknown fidelity"):
        GraphFilter(graph, "soft", 0.5, fidelity="size")  # type: ignore[arg-type]
    with pytest.raises(FedkinError, match="'client-3'"):
        GraphFilter(graph, "soft", 0.5, sizes=[1, 1, 1, 0, *[1] * 10])
    with pytest.raises(FedkinError, match=r"shape \(14,\)"):
        GraphFilter(graph, "soft", 0.5, sizes=[1, 2])
    with pytest.raises(FedkinError, match="factor2"):
        GraphFilter(graph, "heat", 0.5, factor2=True)
    with pytest.raises(FedkinError, match="one number"):
        GraphFilter(graph, "heat", (0.5, 0.5))
    with pytest.raises(FedkinError, match="no weight to divide by"):
        GraphFilter(graph, lambda lambdas, strength: 0 * lambdas, 0.5)


def test_too_many_modes_are_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "DENSE_LIMIT", 0)
    monkeypatch.setattr(filters, "RANK_LIMIT", 3)
    GraphFilter(weighted(), "hard", 3)
    with pytest.raises(FedkinError, match="would keep 4 modes"):
        GraphFilter(weighted(), "hard", 4)
