"""Nearest neighbours: exact where asked, nearly complete where approximate, the same for the same seed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from fedkin.errors import FedkinError
from fedkin.graphs import build, knn, neighbours
from fedkin.graphs.neighbours import nearest


def recall(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(found, exact)])) / exact.shape[1]


def test_exact_search_is_all_distances() -> None:
    points = np.random.default_rng(0).normal(size=(200, 20))
    distance = cdist(points, points)
    np.fill_diagonal(distance, np.inf)
    near = nearest(points, 4)
    assert np.array_equal(np.sort(near.indices.reshape(-1, 4)), np.sort(np.argsort(distance, axis=1)[:, :4]))
    assert np.allclose(np.sort(near.data.reshape(-1, 4)), np.sort(distance, axis=1)[:, :4])


def test_the_rule_looks_at_clients_and_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "EXACT_CLIENTS", 50)
    monkeypatch.setattr(neighbours, "_descended", lambda features, k, seed: "approximate")
    points = np.random.default_rng(0).normal(size=(60, 6))
    assert nearest(points, 2) == "approximate"
    assert nearest(points[:50], 2).shape == (50, 50)
    assert nearest(points[:, :5], 2).shape == (60, 60)
    assert nearest(points, 2, "exact").shape == (60, 60)


def test_without_the_library_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynndescent", None)
    points = np.random.default_rng(0).normal(size=(60, 6))
    with pytest.raises(FedkinError, match=r"60 clients by 6 features .* pip install 'fedkin\[neighbours\]'"):
        knn(points, 2, search="approximate")
    with pytest.raises(FedkinError, match=r"unknown search .*'exakt'"):
        knn(points, 2, search="exakt")  # type: ignore[arg-type]


def test_the_search_can_be_chosen_in_a_spec() -> None:
    stats = np.random.default_rng(0).normal(size=(30, 4, 3))
    names = [f"c{k}" for k in range(30)]
    assert build("knn:3:exact", names, lambda what: stats) == build("knn:3", names, lambda what: stats)
    with pytest.raises(FedkinError, match="near"):
        build("knn:3:exat", names, lambda what: stats)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [10, 20, 60])
def test_approximate_search_finds_nearly_all_of_10000(dimension: int) -> None:
    points = np.random.default_rng(1).normal(size=(10_000, dimension))
    exact = nearest(points, 10, "exact").indices.reshape(-1, 10)
    found = nearest(points, 10, "approximate", seed=3)
    assert recall(found.indices.reshape(-1, 10), exact) > 0.95
    assert np.array_equal(found.indices, nearest(points, 10, "approximate", seed=3).indices)
    assert not (found.indices.reshape(-1, 10) == np.arange(10_000)[:, None]).any()
    i, j = 17, int(found.indices[170])
    assert found.data[170] == pytest.approx(float(np.linalg.norm(points[i] - points[j])), rel=1e-4)
