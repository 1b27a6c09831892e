from __future__ import annotations

import numpy as np
import pytest

import fedkin


def dense(federation: fedkin.Federation) -> np.ndarray:
    adjacency = federation.graph.adjacency
    return adjacency.toarray() if hasattr(adjacency, "toarray") else np.asarray(adjacency)


def test_clusters_without_noise_follow_their_weights() -> None:
    federation = fedkin.data.load("clusters", clients=9, noise=0.0, dimension=4, seed=3)
    assert federation.truth["cluster"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for k in range(9):
        for split in (federation.train, federation.validation, federation.test):
            x, y = split[k]
            assert np.allclose(y, x @ federation.truth["weights"][k])
    assert federation.train.sizes.tolist() == [10] * 9
    assert federation.validation.sizes.tolist() == [100] * 9
    assert federation.public["node-03"].shape == (100, 4)
    assert not np.array_equal(federation.public["node-03"], federation.public["node-04"])


def test_block_model_edge_rates() -> None:
    federation = fedkin.data.load("clusters", clients=150, p_in=0.8, p_out=0.2)
    adjacency, cluster = dense(federation), federation.truth["cluster"]
    same = cluster[:, None] == cluster[None, :]
    upper = np.triu(np.ones_like(adjacency, dtype=bool), k=1)
    assert np.array_equal(adjacency, adjacency.T)
    assert set(np.unique(adjacency)) == {0.0, 1.0}
    assert adjacency[same & upper].mean() == pytest.approx(0.8, abs=0.03)  # 3,675 pairs: σ = 0.007
    assert adjacency[~same & upper].mean() == pytest.approx(0.2, abs=0.03)


def test_noise_has_the_asked_variance() -> None:
    federation = fedkin.data.load("clusters", clients=60, noise=5.0, samples=200, dimension=2)
    owner = np.repeat(np.arange(60), 200)
    residual = federation.train.y - np.einsum("nd,nd->n", federation.train.x, federation.truth["weights"][owner])
    assert residual.std() == pytest.approx(5.0, rel=0.03)


def test_mixture_counts_and_graph() -> None:
    federation = fedkin.data.load("mixture", clients=25, noise=0.0, dimension=3, samples=20)
    rho, components = federation.truth["rho"], federation.truth["components"]
    assert np.allclose(rho.sum(axis=1), 1)
    for k in range(25):
        x, y = federation.train[k]
        errors = np.abs(y[:, None] - x @ components.T)
        counts = np.bincount(errors.argmin(axis=1), minlength=3)
        assert np.allclose(errors.min(axis=1), 0)
        assert np.abs(counts - 20 * rho[k]).max() < 1
    adjacency = dense(federation)
    for i, j in ((0, 1), (4, 20)):
        assert adjacency[i, j] == pytest.approx(np.minimum(rho[i], rho[j]).sum())
    assert not adjacency.diagonal().any()
    assert (adjacency + np.eye(25) > 0).all()
    assert adjacency.max() <= 1


def test_a_client_s_data_depend_on_its_name_not_on_how_many_there_are() -> None:
    few, many = fedkin.data.load("mixture", clients=12), fedkin.data.load("mixture", clients=40)
    assert np.array_equal(few.train[7][0], many.train[7][0])
