from __future__ import annotations

import numpy as np
import pytest

from fedkin.errors import FedkinError
from fedkin.graphs import (
    ClientGraph,
    complete,
    data_sizes,
    empty,
    equal,
    label_overlap,
    random,
    sbm,
    shared_labels,
)

NAMES = [f"c{k}" for k in range(40)]


def dense(graph: ClientGraph) -> np.ndarray:
    return graph.adjacency.toarray()


def test_complete_equal_empty() -> None:
    np.testing.assert_array_equal(dense(complete("abc")), np.ones((3, 3)) - np.eye(3))
    np.testing.assert_array_equal(dense(equal("abc")), 0.5 * (np.ones((3, 3)) - np.eye(3)))
    assert empty("abc").n_edges == 0
    assert complete(["one"]).n_edges == 0


def test_label_overlap_is_the_jaccard_index_of_label_sets() -> None:
    counts = np.random.default_rng(0).integers(0, 3, size=(12, 6))
    counts[4] = 0
    graph = dense(label_overlap(counts))
    sets = [set(np.flatnonzero(row)) for row in counts]
    for i in range(12):
        for j in range(12):
            union = sets[i] | sets[j]
            expected = len(sets[i] & sets[j]) / len(union) if union and i != j else 0
            assert graph[i, j] == pytest.approx(expected)


def test_shared_labels_looks_at_main_labels_only() -> None:
    counts = np.array([[9, 1, 0], [0, 1, 9], [0, 9, 0]])
    np.testing.assert_array_equal(dense(shared_labels(counts)), [[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    np.testing.assert_array_equal(dense(shared_labels(counts, main=1)), np.zeros((3, 3)))
    with pytest.raises(FedkinError, match="label counts"):
        shared_labels(-counts)


def test_data_sizes() -> None:
    graph = dense(data_sizes(np.array([5, 100, 6, 200])))
    assert graph[0, 2] == 0
    assert graph[0, 1] == 0.5
    assert graph[1, 3] == 1
    np.testing.assert_array_equal(dense(data_sizes(np.full(3, 7))), np.ones((3, 3)) - np.eye(3))


def test_random_follows_the_clients_whatever_their_order_or_company() -> None:
    graph = random(NAMES, seed=3)
    order = np.random.default_rng(0).permutation(40)
    assert random([NAMES[k] for k in order], seed=3).align(NAMES) == graph
    assert random(NAMES[:5], seed=3) == graph.take(range(5))
    assert random(NAMES, seed=4) != graph


def test_random_is_the_average_of_two_uniforms_cut_at_a_quarter() -> None:
    weights = dense(random([f"n{k}" for k in range(400)], seed=0))[np.triu_indices(400, 1)]
    assert weights[weights > 0].min() >= 0.25
    assert weights.max() < 1
    # The mean of two uniforms is triangular: P(below 1/4) = 1/8, P(below 1/2) = 1/2.
    assert np.mean(weights == 0) == pytest.approx(1 / 8, abs=0.005)
    assert np.mean(weights < 0.5) == pytest.approx(1 / 2, abs=0.008)


def test_sbm_has_the_stated_densities_and_is_equivariant() -> None:
    clusters = np.repeat([0, 1, 2], 400)
    names = [f"n{k}" for k in range(1200)]
    graph = sbm(clusters, 0.3, 0.02, seed=1, names=names)
    same = clusters[:, None] == clusters[None, :]
    joined = dense(graph)
    inside = joined[same & ~np.eye(1200, dtype=bool)]
    assert inside.mean() == pytest.approx(0.3, abs=0.005)
    assert joined[~same].mean() == pytest.approx(0.02, abs=0.002)
    order = np.random.default_rng(0).permutation(1200)
    assert sbm(clusters[order], 0.3, 0.02, seed=1, names=[names[k] for k in order]).align(names) == graph
    assert sbm([0, 0, 1], 1, 0, seed=0).n_edges == 1
    with pytest.raises(FedkinError, match="p_in"):
        sbm([0, 1], 1.5, 0, seed=0)
