from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph, complete, knn


def some_graph(clients: int = 12, seed: int = 0, density: float = 0.4) -> ClientGraph:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((clients, clients)) * (rng.random((clients, clients)) < density), 1)
    return ClientGraph(upper + upper.T, [f"site-{k}" for k in range(clients)])


def test_accepts_dense_and_sparse_and_stores_symmetric_csr() -> None:
    dense = np.array([[0, 2, 0], [2, 0, 1], [0, 1, 0]])
    for given_as in (dense, dense.tolist(), sp.coo_array(dense), sp.csc_matrix(dense)):
        graph = ClientGraph(given_as, "abc")
        assert isinstance(graph.adjacency, sp.csr_array)
        assert graph.adjacency.dtype == np.float64
        assert graph.adjacency.indices.dtype == np.int32
        np.testing.assert_array_equal(graph.adjacency.toarray(), dense)
        np.testing.assert_array_equal(graph.degrees, [2, 3, 1])
        np.testing.assert_array_equal(graph.laplacian().toarray(), np.diag([2, 3, 1]) - dense)
        assert graph.n_edges == 2


def test_the_given_array_is_not_touched_and_explicit_zeros_are_no_edges() -> None:
    given = sp.csr_array((np.array([0.0, 0.0, 1.0, 1.0]), ([0, 1, 1, 2], [1, 0, 2, 1])), shape=(3, 3))
    graph = ClientGraph(given)
    assert given.nnz == 4
    assert graph.n_edges == 1
    assert graph.isolated == ("client-0",)


@pytest.mark.parametrize(
    ("adjacency", "names", "words"),
    [
        ([[0, 1, 0], [1, 0, 0]], None, ["square", "2×3"]),
        ([0, 1], None, ["(2,)"]),
        ([[0, np.nan], [np.nan, 0]], ["ann", "bob"], ["'ann'", "'bob'", "finite"]),
        ([[0, -1], [-1, 0]], ["ann", "bob"], ["'ann'", "'bob'", "negative"]),
        ([[0, 1], [1, 3]], ["ann", "bob"], ["'bob'", "itself", "diagonal"]),
        ([[0, 1], [0.25, 0]], ["ann", "bob"], ["'ann'→'bob' is 1", "'bob'→'ann' is 0.25", "0.75", "symmetrised"]),
        ([[0, 1], [1, 0]], ["ann", "ann"], ["'ann'", "twice"]),
        ([[0, 1], [1, 0]], ["ann"], ["1 names for 2 clients"]),
        ([["x", "y"], ["y", "x"]], None, ["numbers"]),
    ],
)
def test_bad_input_is_one_line_that_names_the_clients(adjacency: object, names: object, words: list[str]) -> None:
    with pytest.raises(FedkinError) as error:
        ClientGraph(adjacency, names)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_symmetrised_averages_and_drops_loops() -> None:
    graph = ClientGraph.symmetrised([[5, 1], [0, 5]], "ab")
    np.testing.assert_array_equal(graph.adjacency.toarray(), [[0, 0.5], [0.5, 0]])


def test_rounding_asymmetry_of_a_float32_kernel_is_averaged_away() -> None:
    x = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    kernel = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1)).astype(np.float32)
    kernel[0, 1] *= np.float32(1 + 1e-7)
    np.fill_diagonal(kernel, 0)
    adjacency = ClientGraph(kernel).adjacency
    assert abs(adjacency - adjacency.T).max() == 0


def test_align_reorders_and_names_who_does_not_fit() -> None:
    graph = some_graph()
    names = list(reversed(graph.names))
    aligned = graph.align(names)
    assert aligned.names == tuple(names)
    assert aligned.neighbours("site-3") == pytest.approx(graph.neighbours("site-3"))
    assert graph.align(graph.names) is graph
    with pytest.raises(FedkinError, match=r"lacks client 'site_3' \(near: 'site-3'\)"):
        graph.align([*names[:8], "site_3", *names[9:]])
    with pytest.raises(FedkinError, match="'site-0', unknown to the federation"):
        graph.align(names[:-1])
    with pytest.raises(FedkinError, match=r"no client names.*names=federation.names"):
        ClientGraph(graph.adjacency).align(graph.names)


def test_take_neighbours_components() -> None:
    graph = ClientGraph(sp.block_diag([np.ones((2, 2)) - np.eye(2), np.ones((3, 3)) - np.eye(3), [[0]]]), "abcdef")
    assert graph.components().tolist() == [0, 0, 1, 1, 1, 2]
    assert not graph.is_connected
    assert graph.isolated == ("f",)
    assert graph.neighbours("c") == {"d": 1.0, "e": 1.0}
    assert graph.take([4, 2]).neighbours("e") == {"c": 1.0}
    with pytest.raises(FedkinError, match="unknown client 'z'"):
        graph.neighbours("z")
    assert repr(graph) == "ClientGraph(6 clients, 4 edges, 3 components, mean degree 1.33)"


def test_an_order_brings_neighbours_together() -> None:
    """A path numbered at random: in its order every client stands beside its neighbours, with its name."""
    shuffled = np.random.default_rng(0).permutation(50)
    graph = ClientGraph(nx.to_numpy_array(nx.path_graph(50))[np.ix_(shuffled, shuffled)], [f"c{k}" for k in shuffled])
    ordered = graph.take(graph.order())
    ends = ordered.adjacency.tocoo()
    assert np.abs(ends.row - ends.col).max() == 1 < np.abs(np.subtract(*graph.adjacency.nonzero())).max()
    assert sorted(ordered.names) == sorted(graph.names)
    assert ordered.align(graph.names) == graph


def test_equality_and_hash() -> None:
    a, b = some_graph(), some_graph()
    assert a == b
    assert hash(a) == hash(b)
    assert a != some_graph(seed=1)
    assert a != ClientGraph(a.adjacency)
    assert a != "graph"


def test_spectrum_against_closed_forms() -> None:
    ring = ClientGraph.from_networkx(nx.cycle_graph(9))
    expected = np.sort(2 - 2 * np.cos(2 * np.pi * np.arange(9) / 9))
    values, vectors = ring.eigen()
    np.testing.assert_allclose(values, expected, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(9), atol=1e-12)
    np.testing.assert_allclose(vectors * values @ vectors.T, ring.laplacian().toarray(), atol=1e-12)
    assert values[0] == 0
    assert ring.lambda_max() == pytest.approx(expected[-1])
    assert ring.lambda_1() == pytest.approx(expected[1])
    assert complete([f"c{k}" for k in range(7)]).lambda_1() == pytest.approx(7)
    assert ClientGraph(np.zeros((3, 3))).lambda_max() == 0
    assert ClientGraph(np.zeros((3, 3))).lambda_1() == 0


def test_ends_of_the_spectrum_of_a_large_graph_agree_with_the_dense_ones() -> None:
    graph = knn(np.random.default_rng(3).random((1_500, 6)), k=8)
    dense = np.linalg.eigvalsh(graph.laplacian().toarray())
    assert graph.lambda_max() == pytest.approx(dense[-1], rel=1e-6)
    assert graph.lambda_1() == pytest.approx(dense[1], rel=1e-4)
    assert dense[-1] <= graph.lambda_bound() <= 2 * graph.degrees.max()


def test_full_eigendecomposition_is_refused_for_large_graphs() -> None:
    with pytest.raises(FedkinError, match="5,001 clients"):
        ClientGraph(sp.csr_array((5_001, 5_001))).eigen()


def test_networkx_round_trip() -> None:
    graph = some_graph()
    assert ClientGraph.from_networkx(graph.to_networkx()) == graph
    with pytest.raises(FedkinError, match="directed"):
        ClientGraph.from_networkx(nx.DiGraph([(0, 1)]))


def test_npz_and_csv_round_trip_with_isolated_clients_and_odd_names(tmp_path) -> None:
    graph = ClientGraph([[0, 0.1, 0], [0.1, 0, 0], [0, 0, 0]], ["Zürich, HB", "NA", "007"])
    graph.save(tmp_path / "g.npz")
    assert ClientGraph.load(tmp_path / "g.npz") == graph
    graph.to_csv(tmp_path / "g.csv")
    assert ClientGraph.load(tmp_path / "g.csv") == graph
    np.savez(tmp_path / "evil.npz", names=np.array([{"a": 1}], dtype=object))
    with pytest.raises(FedkinError, match="not a client graph"):
        ClientGraph.load(tmp_path / "evil.npz")
    with pytest.raises(FedkinError, match=r"missing\.npz does not exist"):
        ClientGraph.load(tmp_path / "missing.npz")


def test_edge_lists() -> None:
    edges = pd.DataFrame({"source": ["b", "a", "b"], "target": ["a", "b", "c"], "weight": [2.0, 2.0, 1.0]})
    graph = ClientGraph.from_edges(edges)
    assert graph.names == ("b", "a", "c")
    assert graph.neighbours("b") == {"a": 2.0, "c": 1.0}
    assert ClientGraph.from_edges(edges[["source", "target"]], names="abcd").isolated == ("d",)
    with pytest.raises(FedkinError, match="unknown client in edge list 'c'"):
        ClientGraph.from_edges(edges, names=["a", "b"])
    with pytest.raises(FedkinError, match=r"'b' and 'a' has two weights|'a' and 'b' has two weights"):
        ClientGraph.from_edges(edges.assign(weight=[2.0, 3.0, 1.0]))
    with pytest.raises(FedkinError, match="no column 'target'"):
        ClientGraph.from_edges(edges[["source"]])
    with pytest.raises(FedkinError, match="'weight' must hold numbers"):
        ClientGraph.from_edges(edges.assign(weight=["x", "y", "z"]))
    loop = pd.DataFrame({"source": ["a"], "target": ["a"]})
    with pytest.raises(FedkinError, match="'a' is joined to itself"):
        ClientGraph.from_edges(loop)


def test_plot_draws_every_client() -> None:
    import matplotlib

    matplotlib.use("Agg")
    graph = some_graph(8)
    ax = graph.plot(colours=range(8))
    assert len(ax.collections[-1].get_offsets()) == 8
    assert {text.get_text() for text in ax.texts} == set(graph.names)
    matplotlib.pyplot.close(ax.figure)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(7)))
def test_laplacian_is_equivariant_positive_semidefinite_and_kills_constants(seed: int, order: list[int]) -> None:
    graph = some_graph(7, seed)
    laplacian = graph.laplacian().toarray()
    np.testing.assert_allclose(laplacian @ np.ones(7), 0, atol=1e-12)
    assert graph.eigen()[0].min() >= 0
    np.testing.assert_allclose(graph.take(order).laplacian().toarray(), laplacian[np.ix_(order, order)], atol=1e-14)
