from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from fedkin.errors import FedkinError
from fedkin.graphs import build, coordinates, from_statistics, gaussian, knn

RNG = np.random.default_rng(0)
STATS = RNG.normal(size=(6, 4, 5))


def distance() -> np.ndarray:
    d = np.zeros((6, 6))
    for i in range(6):
        for j in range(6):
            d[i, j] = sum(np.linalg.norm(STATS[i, r] - STATS[j, r]) for r in range(4)) / 4
    return d


def test_all_four_ways_to_weigh_a_distance() -> None:
    d, off = distance(), ~np.eye(6, dtype=bool)
    sigma = np.median(d[off])
    for weights, expected in {
        "similarity": 1 - d / d.max(),
        "gaussian": np.exp(-(d**2) / sigma**2),
        "literal": d / d.max(),
        "literal_raw": d,
    }.items():
        graph = from_statistics(STATS, weights=weights, published=True).adjacency.toarray()  # type: ignore[arg-type]
        np.testing.assert_allclose(graph, expected * off, atol=1e-12)


def test_every_moment_counts_alike_unless_the_papers_form_is_asked_for() -> None:
    stats, loud, off = STATS.copy(), STATS.copy(), ~np.eye(6, dtype=bool)
    loud[:, 3] *= 1000  # kurtosis
    plain, scaled = (from_statistics(s).adjacency.toarray() for s in (stats, loud))
    np.testing.assert_allclose(scaled, plain, atol=1e-12)
    only = from_statistics(stats, moments=["kurtosis"], published=True).adjacency.toarray()
    published = from_statistics(loud, published=True).adjacency.toarray()
    np.testing.assert_allclose(published[off], only[off], atol=0.01)


def test_moments_may_be_chosen() -> None:
    other = STATS.copy()
    other[:, 2:] = RNG.normal(size=(6, 2, 5))
    first, second = (from_statistics(s, moments=["mean", "variance"]) for s in (STATS, other))
    assert first == second
    with pytest.raises(FedkinError, match=r"unknown moment.*did you mean 'mean'"):
        from_statistics(STATS, moments=["meen"])  # type: ignore[list-item]
    with pytest.raises(FedkinError, match="unknown moment"):
        from_statistics(STATS, moments=[])


def test_two_clients_keep_their_edge() -> None:
    assert from_statistics(STATS[:2]).n_edges == 1
    assert from_statistics(STATS[:2], published=True).n_edges == 0


def test_scales() -> None:
    assert from_statistics(STATS, scale="max").adjacency.max() == pytest.approx(1)
    assert from_statistics(STATS, scale="mean_degree").degrees.mean() == pytest.approx(5)
    with pytest.raises(FedkinError, match="unknown scale"):
        from_statistics(STATS, scale="min")  # type: ignore[arg-type]


def test_the_closest_clients_weigh_most_and_identical_ones_weigh_one() -> None:
    stats = np.zeros((3, 4, 2))
    stats[2] = 5
    graph = from_statistics(stats, ["a", "b", "far"])
    assert graph.neighbours("a") == {"b": 1.0, "far": 0.05}
    assert from_statistics(stats, ["a", "b", "far"], published=True).neighbours("a") == {"b": 1.0}
    same = from_statistics(np.ones((3, 4, 2)))
    assert same.adjacency.toarray()[0].tolist() == [0, 1, 1]
    assert from_statistics(np.ones((3, 4, 2)), weights="gaussian").adjacency.toarray()[0].tolist() == [0, 1, 1]
    assert from_statistics(np.ones((1, 4, 2))).n_edges == 0


def test_statistics_that_do_not_match_name_the_client() -> None:
    with pytest.raises(FedkinError, match=r"client 'b'.*\(4, 3\)"):
        from_statistics([np.zeros((4, 2)), np.zeros((4, 3))], ["a", "b"])
    with pytest.raises(FedkinError, match=r"client 'b'.*finite"):
        from_statistics([np.zeros((4, 2)), np.full((4, 2), np.nan)], ["a", "b"])
    with pytest.raises(FedkinError, match="unknown weights"):
        from_statistics(STATS, weights="simillarity")  # type: ignore[arg-type]


def test_gaussian() -> None:
    x = RNG.normal(size=(7, 3))
    d = cdist(x, x)
    expected = np.exp(-(d**2) / 2.0**2) * (1 - np.eye(7))
    np.testing.assert_allclose(gaussian(x, sigma=2.0).adjacency.toarray(), expected, atol=1e-12)


def test_knn_against_brute_force() -> None:
    x = RNG.normal(size=(50, 4))
    d = cdist(x, x)
    np.fill_diagonal(d, np.inf)
    nearest = np.argsort(d, axis=1)[:, :3]
    expected = np.zeros((50, 50))
    expected[np.arange(50)[:, None], nearest] = 1
    np.testing.assert_array_equal(knn(x, 3).adjacency.toarray(), np.maximum(expected, expected.T))
    weighted = knn(x, 3, weights="gaussian").adjacency.toarray()
    np.testing.assert_array_equal(weighted > 0, np.maximum(expected, expected.T) > 0)
    assert knn(np.zeros((4, 2)), 3).n_edges == 6  # twins are neighbours too
    with pytest.raises(FedkinError, match="k must be from 1 to 49"):
        knn(x, 50)
    x[7, 0] = np.nan
    with pytest.raises(FedkinError, match="'client-7'"):
        knn(x, 3)


def test_knn_of_many_clients_forms_no_square_array() -> None:
    graph = knn(np.random.default_rng(1).random((30_000, 2)), 5)  # 30,000² float64 would be 7 GB
    assert graph.adjacency.nnz < 30_000 * 10


def test_coordinates_are_great_circle_distances() -> None:
    # Zürich, Bern, Geneva, Sydney; Zürich–Bern 95 km, Bern–Geneva 129 km.
    places = np.array([[47.3769, 8.5417], [46.9480, 7.4474], [46.2044, 6.1432], [-33.8688, 151.2093]])
    names = ["zurich", "bern", "geneva", "sydney"]
    graph = coordinates(places, radius=150, names=names, sigma=100.0)
    assert graph.isolated == ("sydney",)
    km = np.sqrt(-np.log(graph.neighbours("bern")["zurich"])) * 100
    assert km == pytest.approx(95.5, abs=1.5)
    assert "zurich" not in graph.neighbours("geneva")
    assert coordinates(places[:3], k=1, names=names[:3]).n_edges == 2
    far = coordinates(places, k=1, names=names, sigma=100.0)
    assert far.isolated == ("sydney",)  # its weight falls under the threshold
    for bad in ({}, {"k": 1, "radius": 5.0}, {"k": 4}, {"radius": -1.0}):
        with pytest.raises(FedkinError, match="coordinates"):
            coordinates(places, **bad)  # type: ignore[arg-type]
    with pytest.raises(FedkinError, match="latitude"):
        coordinates(places[:, ::-1], k=1)


def test_divergence_of_inputs_and_of_labels_is_that_of_torch() -> None:
    """exp(−J/median J), J from torch.distributions, feature by feature; features that never vary do not count."""
    stats = np.abs(RNG.normal(size=(5, 4, 3))) + 0.1
    stats[:, 1, 2] = 0  # constant everywhere
    names, off = [f"c{k}" for k in range(5)], ~np.eye(5, dtype=bool)
    mean, variance = stats[:, 0, :2], stats[:, 1, :2] + 1e-3 * stats[:, 1, :2].mean(axis=0)
    normal = [torch.distributions.Normal(torch.tensor(m), torch.tensor(v).sqrt()) for m, v in zip(mean, variance)]
    counts = RNG.integers(0, 9, (5, 4))
    shares = [torch.distributions.Categorical(torch.tensor((c + 0.5) / (c + 0.5).sum())) for c in counts]
    for spec, told, laws in (("kl", stats, normal), ("kl:labels", counts, shares)):
        kl = torch.distributions.kl_divergence
        apart = np.array([[float((kl(a, b) + kl(b, a)).mean()) / 2 for b in laws] for a in laws])
        found = build(spec, names, lambda what, told=told: told).adjacency.toarray()
        np.testing.assert_allclose(found, np.exp(-apart / np.median(apart[off])) * off, rtol=1e-9, atol=1e-12)


def test_correlation_is_pearsons_where_it_is_positive() -> None:
    stats = RNG.normal(size=(6, 4, 7))
    found = build("correlation", [f"c{k}" for k in range(6)], lambda what: stats).adjacency.toarray()
    expected = np.corrcoef(stats[:, 0]).clip(0) * (1 - np.eye(6))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    stats[0, 0] = 3.0  # a constant vector correlates with nothing
    assert not build("correlation", [f"c{k}" for k in range(6)], lambda what: stats).adjacency[0].toarray().any()
    with pytest.raises(FedkinError, match="takes no option"):
        build("kl:moments", ["a", "b"], lambda what: stats[:2])
