from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree

from fedkin.graphs import ClientGraph, builders, similarity
from fedkin.graphs.layout import communities, positions, strongest_edges


@pytest.mark.parametrize("clients", [1, 2, 5, 30, 300])
def test_no_client_hides_another(clients):
    rng = np.random.default_rng(0)
    names = [f"c{k}" for k in range(clients)]
    graphs = [builders.empty(names), builders.complete(names)]
    if clients > 5:
        graphs.append(similarity.knn(rng.normal(size=(clients, 2)), 4))
    for graph in graphs:
        place = positions(graph)
        assert place.shape == (clients, 2)
        assert place.min() >= -1e-9
        assert place.max() <= 1 + 1e-9
        if clients > 1:
            nearest = cKDTree(place).query(place, k=2)[0][:, 1]
            assert nearest.min() > 0.4 / np.sqrt(clients)


@pytest.mark.slow
def test_two_thousand_clients_stay_readable():
    rng = np.random.default_rng(0)
    place = positions(similarity.knn(rng.normal(size=(2_000, 3)) + 9 * rng.integers(0, 3, size=(2_000, 1)), 5))
    nearest = cKDTree(place).query(place, k=2)[0][:, 1]
    assert np.percentile(nearest, 5) > 0.2 / np.sqrt(2_000)


def test_clusters_lie_apart_and_are_found():
    rng = np.random.default_rng(1)
    cluster = np.repeat([0, 1, 2], 12)
    graph = builders.sbm(cluster, 0.9, 0.02, seed=3)
    place, found = positions(graph), communities(graph)
    assert len({(a, b) for a, b in zip(cluster, found)}) == 3
    centres = np.array([place[cluster == c].mean(axis=0) for c in range(3)])
    nearest = np.linalg.norm(place[:, None] - centres[None], axis=2).argmin(axis=1)
    assert (nearest == cluster).mean() > 0.9
    shuffled = rng.permutation(36)
    assert len({(a, b) for a, b in zip(cluster[shuffled], communities(graph.take(shuffled)))}) == 3


def test_layout_repeats():
    graph = similarity.knn(np.random.default_rng(0).normal(size=(20, 2)), 3)
    assert np.array_equal(positions(graph), positions(graph))


def test_strongest_edges():
    graph = ClientGraph([[0, 3, 1], [3, 0, 2], [1, 2, 0]])
    assert np.array_equal(strongest_edges(graph.adjacency, 1).toarray(), [[0, 3, 0], [3, 0, 2], [0, 2, 0]])
    assert np.array_equal(strongest_edges(graph.adjacency, 2).toarray(), graph.adjacency.toarray())
