from __future__ import annotations

import time
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import rand_score

from fedkin.couplings import clustering
from fedkin.couplings.clustering import (
    by_name,
    embed,
    in_order,
    k_means,
    k_means_seeds,
    lasting_names,
    nearest_centre,
    rand_index,
    told_labels,
)
from fedkin.errors import FedkinError


def blobs(members: int, width: int, groups: int, spread: float, seed: int) -> torch.Tensor:
    """Rows around a far common point, as models are around their initial weights."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(groups, width))
    rows = (
        10 * rng.normal(size=width) + centres[np.arange(members) % groups] + spread * rng.normal(size=(members, width))
    )
    return torch.from_numpy(rows)


def inertia(rows: np.ndarray, labels: np.ndarray) -> float:
    return sum(((rows[labels == c] - rows[labels == c].mean(axis=0)) ** 2).sum() for c in np.unique(labels))


@pytest.mark.parametrize("shape", [(30, 2000), (12, 70_000), (40, 3), (2, 5)])
def test_the_embedding_has_the_distances_of_the_rows(shape: tuple[int, int]) -> None:
    rows = blobs(*shape, groups=3, spread=0.5, seed=1)
    points = torch.from_numpy(embed(rows))
    assert points.shape == (shape[0], shape[0])
    exact = {"compute_mode": "donot_use_mm_for_euclid_dist"}
    assert torch.allclose(torch.cdist(points, points, **exact), torch.cdist(rows, rows, **exact), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_k_means_is_that_of_the_full_matrix(spread: float, dtype: torch.dtype) -> None:
    """Same labels and inertia as scikit-learn on the rows themselves, also where clusters overlap."""
    for seed in range(3):
        rows = blobs(40, 3000, groups=5, spread=spread, seed=seed).to(dtype)
        full = KMeans(5, n_init=10, max_iter=300, tol=0, random_state=seed).fit(rows.double().numpy())
        labels = k_means(rows, 5, seed)
        assert np.array_equal(labels, in_order(full.labels_)[1])
        assert inertia(rows.double().numpy(), labels) == pytest.approx(full.inertia_, rel=1e-6)


@pytest.mark.slow
def test_a_hundred_models_of_a_million_parameters_take_seconds() -> None:
    rows = torch.randn((100, 1_000_000), generator=torch.Generator().manual_seed(0))
    rows[50:] += 1
    started = time.perf_counter()
    labels = k_means(rows, 2, seed=0)
    assert time.perf_counter() - started < 30
    assert labels.tolist() == [0] * 50 + [1] * 50


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(1, 8), st.integers(0, 99))
def test_no_cluster_is_empty_and_only_equal_rows_make_fewer(values: list[int], clusters: int, seed: int) -> None:
    rows = torch.tensor(values, dtype=torch.float64)[:, None] * torch.tensor([[1.0, -2.0]])
    labels = k_means(rows, clusters, seed)
    found = np.unique(labels)
    assert np.array_equal(found, np.arange(len(found)))
    assert len(found) == min(clusters, len(set(values)))
    assert len(set(k_means_seeds(rows, clusters, seed).tolist()) - set(range(len(values)))) == 0


def test_k_means_seeds_lie_in_different_groups() -> None:
    rows = blobs(30, 50, groups=3, spread=0.01, seed=0)
    assert sorted(k_means_seeds(rows, 3, seed=2) % 3) == [0, 1, 2]
    assert not np.array_equal(k_means_seeds(rows, 3, seed=2), k_means_seeds(rows, 3, seed=5))


def test_nearest_is_brute_force() -> None:
    rng = np.random.default_rng(0)
    rows, centres = rng.normal(size=(9, 4)), rng.normal(size=(3, 4))
    found = nearest_centre(torch.from_numpy(rows), torch.from_numpy(centres))
    for row, code in zip(rows, found):
        assert code == min(range(3), key=lambda j: float(np.linalg.norm(row - centres[j])))


def test_names_follow_the_centres_through_a_common_drift() -> None:
    rng = np.random.default_rng(3)
    before = torch.from_numpy(rng.normal(size=(4, 20)))
    for order in permutations(range(4)):
        moved = before[list(order)] + 50 + 0.1 * torch.from_numpy(rng.normal(size=(4, 20)))
        assert lasting_names(moved, before).tolist() == list(order)
    assert lasting_names(before, before[:0]).tolist() == [0, 1, 2, 3]
    assert lasting_names(before[[2]], before).tolist() == [2]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=15))
def test_rand_index_counts_pairs(labels: list[tuple[int, int]]) -> None:
    one, other = zip(*labels)
    agree = [(one[i] == one[j]) == (other[i] == other[j]) for i, j in combinations(range(len(one)), 2)]
    assert rand_index(one, other) == pytest.approx(np.mean(agree))
    assert rand_index(one, other) == pytest.approx(rand_score(one, other))


def test_rand_index_needs_the_same_clients() -> None:
    with pytest.raises(FedkinError, match="not of 2 and 3"):
        rand_index([0, 1], [0, 1, 2])
    with pytest.raises(FedkinError, match="2 or more"):
        rand_index([0], [0])


def test_order_by_name_does_not_depend_on_the_list() -> None:
    names = [f"client-{k}" for k in range(9)]
    straight = [names[k] for k in by_name(np.arange(9), names)]
    shuffled = names[4:] + names[:4]
    assert [shuffled[k] for k in by_name(np.array([3, 1, 0, 2, 8, 7, 6, 5, 4]), shuffled)] == straight


def test_labels_are_told_by_name_in_order_or_by_the_data() -> None:
    names, truth = ("a", "b"), {"cluster": np.array([3, 4])}
    assert told_labels("x: groups", {"b": "two", "a": 1}, names, truth).tolist() == ["1", "two"]  # type: ignore[union-attr]
    assert told_labels("x: groups", (5, 6), names, truth).tolist() == ["5", "6"]  # type: ignore[union-attr]
    assert told_labels("x: groups", None, names, truth).tolist() == ["3", "4"]  # type: ignore[union-attr]
    assert told_labels("x: groups", None, names, {}) is None
    with pytest.raises(FedkinError, match="x: groups has 1 labels for 2 clients"):
        told_labels("x: groups", (1,), names, {})


def test_many_rows_are_clustered_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(
        rng.standard_normal((6, 40))[rng.integers(0, 6, 120)] + 0.3 * rng.standard_normal((120, 40))
    )
    paired = k_means(rows, 6, seed=1)
    monkeypatch.setattr(clustering, "GRAM_ROWS", 100)
    assert np.array_equal(k_means(rows, 6, seed=1), paired)
    assert np.array_equal(k_means(torch.ones((120, 3)), 6, seed=1), np.zeros(120))
