from __future__ import annotations

import numpy as np
import pytest

import fedkin
from fedkin.data.federate import Recipe, pooled
from fedkin.errors import FedkinError


def indexed(recipe: Recipe, n: int = 400, owner: np.ndarray | None = None) -> fedkin.Federation:
    """A federation whose inputs are the row numbers, so that every sample can be traced."""
    y = np.arange(n) % 4
    return pooled(recipe, np.arange(n)[:, None], y, range(4), owner)


def rows(federation: fedkin.Federation) -> np.ndarray:
    return np.concatenate([s.x[:, 0] for s in (federation.train, federation.validation, federation.test)]).astype(int)


def test_parts_never_overlap_and_keep_labels_with_inputs() -> None:
    federation = indexed(Recipe(clients=7, partition="dirichlet:0.5", test_fraction=0.2, validation_fraction=0.1))
    assert sorted(rows(federation)) == list(range(400))
    for split in (federation.train, federation.validation, federation.test):
        assert np.array_equal(split.y, split.x[:, 0].astype(int) % 4)
    assert federation.names[0] == "client-00"
    assert len(federation.test.x) == pytest.approx(80, abs=7)


def test_same_seed_same_federation_other_seed_other() -> None:
    build = lambda seed: fedkin.data.load("digits", clients=8, partition="dirichlet:0.3", seed=seed).fingerprint()  # noqa: E731
    assert build(1) == build(1) != build(2)


@pytest.mark.parametrize("name", ["digits", "clusters", "mixture"])
def test_source_builds_the_same_federation_again(name: str) -> None:
    options = {"partition": "shards:2", "downsample": "tables"} if name == "digits" else {"dimension": 3}
    federation = fedkin.data.load(name, clients=12, seed=5, **options)
    again = fedkin.data.load(**federation.source)
    assert again.fingerprint() == federation.fingerprint()
    assert again.source == federation.source


def test_global_random_state_is_left_alone() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    fedkin.data.load("digits", clients=5)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_natural_clients_and_drawing_some_of_them() -> None:
    owner = np.array([f"subject-{i:02d}" for i in np.arange(400) // 50])
    everyone = indexed(Recipe(), owner=owner)
    assert everyone.names == tuple(f"subject-{i:02d}" for i in range(8))
    for k in range(8):
        assert set(everyone.train[k][0][:, 0].astype(int) // 50) == {k}
    some = indexed(Recipe(clients=3, seed=1), owner=owner)
    assert len(some) == 3
    assert list(some.names) == sorted(some.names)
    assert set(some.names) != set(indexed(Recipe(clients=3, seed=2), owner=owner).names)
    assert indexed(Recipe(clients=5, partition="iid"), owner=owner).names[0] == "client-00"


def test_scaling_is_fitted_on_training_rows_only() -> None:
    seen: list[np.ndarray] = []

    def fit(train: np.ndarray):  # type: ignore[no-untyped-def]
        seen.append(train.copy())
        return lambda raw: (raw - train.mean()).astype(np.float32)

    federation = pooled(
        Recipe(clients=3, partition="iid"), np.arange(90.0)[:, None], np.arange(90) % 3, range(3), fit=fit
    )
    assert len(seen) == 1
    assert len(seen[0]) == len(federation.train.x)
    assert federation.train.x.mean() == pytest.approx(0, abs=1e-4)


def test_overlapping_shards_are_noted() -> None:
    assert "clients overlap" in fedkin.data.load("digits", partition="shards-official:2").notes[0]
    assert fedkin.data.load("digits", partition="shards:2").notes == ()


def test_samples_draws_a_subset() -> None:
    federation = fedkin.data.load("digits", clients=4, samples=200)
    assert len(federation.train.x) + len(federation.test.x) == 200


@pytest.mark.parametrize(
    ("downsample", "official", "share", "train", "test"),
    [("tables", False, 0.5, 0.2, 1.0), ("tables", True, 0.5, 0.2, 0.4), ("curves", True, 0.9, 0.05, 0.2)],
)
def test_downsampling_keeps_the_last_samples_of_some_clients(
    downsample: str, official: bool, share: float, train: float, test: float
) -> None:
    plain = indexed(Recipe(clients=10, partition="iid"), 4000)
    small = indexed(Recipe(clients=10, partition="iid", downsample=downsample, official=official), 4000)
    reduced = [k for k in range(10) if len(small.train[k][0]) < len(plain.train[k][0])]
    assert len(reduced) == int(10 * share)
    for k in range(10):
        for part, kept in (("train", train), ("test", test)):
            before, after = getattr(plain, part)[k][0], getattr(small, part)[k][0]
            expected = round(kept * len(before)) if k in reduced else len(before)
            assert len(after) == expected
            assert np.array_equal(after, before[len(before) - expected :])


def test_topology_comes_with_its_truth_and_graph() -> None:
    federation = fedkin.data.load("digits", clients=12, partition="topology:2")
    assert federation.truth["cluster"].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    adjacency = federation.graph.adjacency
    adjacency = adjacency.toarray() if hasattr(adjacency, "toarray") else np.asarray(adjacency)
    assert adjacency[0, 1] == 1  # same group
    assert adjacency[0, 3] == 1  # {0,1,2} and {2,3,4}
    assert adjacency[0, 6] == 0  # {0,1,2} and {4,5,6}
    assert adjacency[0, 9] == 1  # the cycle closes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "digit"}, "did you mean 'digits'"),
        ({"name": "digits", "smples": 3}, "did you mean 'samples'"),
        ({"name": "digits", "shape": "imag"}, "did you mean 'image'"),
        ({"name": "digits", "partition": "natural"}, "no clients of its own"),
        ({"name": "digits", "clients": 0}, "at least one"),
        ({"name": "digits", "test_fraction": 1.0}, "test_fraction"),
        ({"name": "digits", "test_fraction": 0.6, "validation_fraction": 0.4}, "nothing to train on"),
        ({"name": "digits", "downsample": "half"}, "downsample is 'half'"),
        ({"name": "digits", "downsample": "0.5:0.2", "official": True}, "kept share of test"),
        ({"name": "digits", "samples": 5000}, "has 1797"),
        ({"name": "clusters", "partition": "iid"}, "makes its own clients"),
        ({"name": "clusters", "clients": 2}, "one client per cluster"),
        ({"name": "clusters", "p_in": 2.0}, "probabilities"),
        ({"name": "mixture", "dimension": 0}, "at least 1"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments: dict, words: str) -> None:
    with pytest.raises(FedkinError, match=words) as problem:
        fedkin.data.load(**arguments)
    assert "\n" not in str(problem.value)
