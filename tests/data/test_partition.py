from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.data import partition
from fedkin.errors import FedkinError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def label_arrays(minimum: int = 200) -> st.SearchStrategy[np.ndarray]:
    return st.builds(
        lambda seed, classes, n: np.concatenate([np.arange(classes).repeat(20), rng(seed).integers(0, classes, n)]),
        st.integers(0, 10**6),
        st.integers(2, 12),
        st.integers(minimum, 600),
    )


def assert_disjoint(parts: list[np.ndarray], n: int, covering: bool) -> None:
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < n
    if covering:
        assert len(rows) == n


@settings(max_examples=30, deadline=None)
@given(
    labels=label_arrays(),
    clients=st.integers(1, 20),
    spec=st.sampled_from(["iid", "dirichlet:0.1", "dirichlet:5"]),
    seed=st.integers(0, 99),
)
def test_every_row_has_exactly_one_owner(labels: np.ndarray, clients: int, spec: str, seed: int) -> None:
    parts = partition.split(spec, labels, clients, rng(seed))
    assert len(parts) == clients
    assert_disjoint(parts, len(labels), covering=True)
    again = partition.split(spec, labels, clients, rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))


@settings(max_examples=25, deadline=None)
@given(labels=label_arrays(), clients=st.integers(1, 20), alpha=st.sampled_from([1e-3, 0.01, 0.3, 100.0]))
def test_dirichlet_always_reaches_its_minimum(labels: np.ndarray, clients: int, alpha: float) -> None:
    sizes = [len(rows) for rows in partition.dirichlet(labels, clients, rng(), alpha)]
    assert min(sizes) >= min(10, len(labels) // clients)


@pytest.mark.parametrize("n", [5000, 60000])
def test_dirichlet_ends_for_tiny_alpha_and_many_clients(n: int) -> None:
    labels = rng().integers(0, 10, n)
    start = time.perf_counter()
    parts = partition.split("dirichlet:0.01", labels, 500, rng())
    assert time.perf_counter() - start < 5
    assert_disjoint(parts, n, covering=True)
    assert min(map(len, parts)) >= 10


def entropy(labels: np.ndarray, parts: list[np.ndarray]) -> float:
    """Mean entropy of the clients' label distributions."""
    total = 0.0
    for rows in parts:
        p = np.bincount(labels[rows], minlength=10) / len(rows)
        total -= float((p[p > 0] * np.log(p[p > 0])).sum())
    return total / len(parts)


def test_dirichlet_skew_grows_as_alpha_falls() -> None:
    labels = rng().integers(0, 10, 6000)
    skews = [entropy(labels, partition.dirichlet(labels, 20, rng(1), alpha)) for alpha in (0.05, 0.5, 50.0)]
    assert skews[0] < skews[1] < skews[2]
    assert skews[2] == pytest.approx(np.log(10), abs=0.05)


def flower_parts(partitioner: object, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    datasets = pytest.importorskip("datasets")
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})  # type: ignore[attr-defined]
    return [np.asarray(partitioner.load_partition(k)["row"]) for k in range(clients)]  # type: ignore[attr-defined]


def test_dirichlet_agrees_with_flower_in_distribution() -> None:
    """Flower's self-balancing Dirichlet is the same NIID-Bench rule; compare mean label entropy and size spread."""
    flower = pytest.importorskip("flwr_datasets.partitioner")
    labels = rng().integers(0, 10, 3000)
    ours, theirs = [], []
    for seed in range(12):
        ours.append(partition.dirichlet(labels, 10, rng(seed), 0.5))
        theirs.append(
            flower_parts(flower.DirichletPartitioner(10, "label", 0.5, self_balancing=True, seed=seed), labels, 10)
        )
    mean = [np.mean([entropy(labels, parts) for parts in runs]) for runs in (ours, theirs)]
    spread = [np.mean([np.std([len(rows) for rows in parts]) for parts in runs]) for runs in (ours, theirs)]
    assert mean[0] == pytest.approx(mean[1], abs=0.06)
    assert spread[0] == pytest.approx(spread[1], rel=0.15)  # without the zeroing step it is 30 % larger


def test_k_labels_agree_with_flower() -> None:
    """Flower's pathological partitioner: first label i mod C, the others random, classes shared evenly."""
    flower = pytest.importorskip("flwr_datasets.partitioner")
    labels = np.repeat(np.arange(10), 100)
    pathological = flower.PathologicalPartitioner(
        20, "label", num_classes_per_partition=3, class_assignment_mode="first-deterministic", seed=0
    )
    theirs = flower_parts(pathological, labels, 20)
    ours = partition.labels_per_client(labels, 20, rng(), 3)
    for parts in (ours, theirs):
        assert all(len(np.unique(labels[rows])) == 3 for rows in parts)
        assert all(k % 10 in labels[rows] for k, rows in enumerate(parts))
        holders = [sum(label in labels[rows] for rows in parts) for label in range(10)]
        sizes = {
            len(rows[labels[rows] == label]) - 100 // holders[label]
            for rows in parts
            for label in np.unique(labels[rows])
        }
        assert sizes <= {0, 1}


@settings(max_examples=30, deadline=None)
@given(labels=label_arrays(), clients=st.integers(1, 20), data=st.data())
def test_k_labels_means_exactly_k(labels: np.ndarray, clients: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(np.unique(labels))))
    parts = partition.split(f"labels:{count}", labels, clients, rng())
    assert_disjoint(parts, len(labels), covering=False)
    assert all(len(np.unique(labels[rows])) == count for rows in parts)
    assert all(np.unique(labels)[k % len(np.unique(labels))] in labels[rows] for k, rows in enumerate(parts))


@settings(max_examples=30, deadline=None)
@given(labels=label_arrays(), clients=st.integers(1, 20), count=st.integers(1, 5))
def test_shards_are_equal_disjoint_and_hold_few_labels(labels: np.ndarray, clients: int, count: int) -> None:
    parts = partition.split(f"shards:{count}", labels, clients, rng())
    size = len(labels) // (clients * count)
    assert_disjoint(parts, len(labels), covering=False)
    assert {len(rows) for rows in parts} == {count * size}
    smallest = np.bincount(labels).min()
    if size <= smallest:  # a shard then straddles at most one boundary
        assert all(len(np.unique(labels[rows])) <= 2 * count for rows in parts)
        straddling = sum(max(0, len(np.unique(labels[rows])) - count) for rows in parts)
        assert straddling <= len(np.unique(labels)) - 1


def test_official_shards_keep_label_counts_but_overlap() -> None:
    labels = np.repeat(np.arange(10), 100)
    disjoint = partition.shards(labels, 50, rng(3), 2)
    official = partition.shards_official(labels, 50, rng(3), 2)
    for a, b in zip(disjoint, official):
        assert np.array_equal(np.bincount(labels[a], minlength=10), np.bincount(labels[b], minlength=10))
        assert len(np.unique(b)) == len(b)
    assert len(np.unique(np.concatenate(official))) < len(np.concatenate(official))


@settings(max_examples=25, deadline=None)
@given(labels=label_arrays(300), clients=st.integers(1, 15), alpha=st.sampled_from([0.05, 0.2, 10.0]))
def test_balanced_dirichlet_gives_exactly_n(labels: np.ndarray, clients: int, alpha: float) -> None:
    n = len(labels) // clients
    parts = partition.split(f"balanced-dirichlet:{alpha}:{n}", labels, clients, rng())
    assert_disjoint(parts, len(labels), covering=False)
    assert {len(rows) for rows in parts} == {n}


def test_balanced_dirichlet_follows_its_proportions() -> None:
    """With ample stock the mean share of a client's largest class is that of a Dirichlet vector's largest entry."""
    labels = np.repeat(np.arange(10), 5000)
    parts = partition.balanced_dirichlet(labels, 100, rng(), 0.2, 100)
    ours = np.mean([np.bincount(labels[rows]).max() / 100 for rows in parts])
    exact = rng(1).dirichlet(np.full(10, 0.2), 4000).max(axis=1).mean()
    assert ours == pytest.approx(exact, abs=0.06)


def test_fedu_labels_and_sizes() -> None:
    labels = np.repeat(np.arange(10), 7000)
    parts = partition.split("fedu:2", labels, 100, rng())
    assert_disjoint(parts, len(labels), covering=False)
    for k, rows in enumerate(parts):
        assert set(np.unique(labels[rows])) == {k % 10, (k + 1) % 10}
    sizes = np.array([len(rows) for rows in parts])
    assert sizes.min() >= 20
    assert np.median(sizes) > 300
    cifar = partition.split("fedu:3:300:600:1", np.repeat(np.arange(10), 6000), 20, rng())
    assert all(len(np.unique(np.repeat(np.arange(10), 6000)[rows])) == 3 for rows in cifar)


@pytest.mark.parametrize(("spec", "groups"), [("topology:1", 3), ("topology:2", 4), ("topology:3", 5)])
def test_topology_groups_hold_their_labels(spec: str, groups: int) -> None:
    labels = np.repeat(np.arange(10), 300)
    parts = partition.split(spec, labels, 20 * groups, rng())
    assert_disjoint(parts, len(labels), covering=False)
    sets = partition.groups_of(spec[-1])
    assert len(sets) == groups
    for k, rows in enumerate(parts):
        assert set(np.unique(labels[rows])) == set(sets[k // 20])


def test_topology_with_own_lists() -> None:
    labels = np.repeat(np.arange(4), 50)
    parts = partition.split("topology:0,1|1,3", labels, 4, rng())
    assert [set(np.unique(labels[rows])) for rows in parts] == [{0, 1}, {0, 1}, {1, 3}, {1, 3}]


@pytest.mark.parametrize(
    ("spec", "clients", "words"),
    [
        ("dirchlet:0.3", 5, "did you mean 'dirichlet'"),
        ("dirichlet:x", 5, "alpha must be a number"),
        ("dirichlet:-1", 5, "must be positive"),
        ("dirichlet:1:2:3", 5, "too many arguments"),
        ("iid:1", 5, "takes none"),
        ("labels:11", 5, "there are 10 classes"),
        ("labels:1.5", 5, "whole number"),
        ("fedu:0", 5, "there are 10 classes"),
        ("shards:0", 5, "need at least that many samples"),
        ("shards:100", 50, "need at least that many samples"),
        ("balanced-dirichlet:0.2:500", 5, "exceed the 1000 at hand"),
        ("topology:a", 5, "label lists such as"),
        ("topology:0,77", 5, "label 77 is not in the data"),
        ("topology:1", 2, "use at least 3 clients"),
        ("iid", 0, "at least one client"),
        ("iid", 2000, "use at most 1000"),
    ],
)
def test_bad_specs_are_one_clear_line(spec: str, clients: int, words: str) -> None:
    with pytest.raises(FedkinError, match=words) as problem:
        partition.split(spec, np.repeat(np.arange(10), 100), clients, rng())
    assert "\n" not in str(problem.value)


def test_labels_with_too_few_samples_for_their_holders() -> None:
    with pytest.raises(FedkinError, match="use fewer clients"):
        partition.split("labels:2", np.repeat(np.arange(2), 5), 10, rng())
