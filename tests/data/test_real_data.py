"""The real data sets in $FEDKIN_DATA: counts, known constants, what is noted, speed and memory of loading."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import fedkin

pytestmark = pytest.mark.real_data


def size(federation: fedkin.Federation) -> int:
    return sum(s.x.nbytes + s.y.nbytes for s in (federation.train, federation.validation, federation.test))


def seconds_and_peak(name: str) -> tuple[float, float]:
    """The best of three loads from the cache, and the peak memory of one as a multiple of its arrays."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        fedkin.data.load(name, clients=100)
        times.append(time.perf_counter() - start)
    tracemalloc.start()
    federation = fedkin.data.load(name, clients=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(times), peak / size(federation)


def test_mnist(real_data: Path) -> None:
    federation = fedkin.data.load("mnist", clients=100, partition="balanced-dirichlet:0.2:600")
    assert federation.task.input_shape == (1, 28, 28)
    assert (federation.train.sizes + federation.test.sizes == 600).all()
    everything = fedkin.data.load("mnist", clients=20, partition="iid", files="train", test_fraction=0.0)
    assert everything.label_counts().sum(axis=0).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert everything.train.x.mean() == pytest.approx(0.1307, abs=1e-4)
    assert everything.train.x.std(dtype=np.float64) == pytest.approx(0.3081, abs=1e-4)


def test_mnist_loads_from_cache_within_a_second_and_twice_its_arrays(real_data: Path) -> None:
    seconds, peak = seconds_and_peak("mnist")
    assert seconds < 1
    assert peak <= 2


@pytest.mark.slow
def test_cifar10(real_data: Path) -> None:
    everything = fedkin.data.load("cifar10", clients=10, partition="iid", files="train", test_fraction=0.0)
    assert everything.train.x.mean(axis=(0, 2, 3), dtype=np.float64) == pytest.approx(
        [0.4914, 0.4822, 0.4465], abs=1e-4
    )
    assert everything.label_counts().sum(axis=0).tolist() == [5000] * 10
    seconds, peak = seconds_and_peak("cifar10")
    assert seconds < 3
    assert peak <= 2


@pytest.mark.parametrize(("inputs", "shape"), [("features", (561,)), ("inertial", (9, 128))])
def test_har_has_one_client_per_subject(real_data: Path, inputs: str, shape: tuple[int, ...]) -> None:
    federation = fedkin.data.load("har", inputs=inputs)
    assert federation.names[0] == "subject-01"
    assert len(federation) == 30
    assert federation.task.input_shape == shape
    rows = federation.train.sizes + federation.test.sizes
    assert (rows.min(), rows.max(), rows.sum()) == (281, 409, 10299)
    assert any("recomputed" in note for note in federation.notes)
    assert "recomputed" in fedkin.data.info("har")["notes"][0]


def test_metr_la_is_one_week_and_says_so(real_data: Path) -> None:
    federation = fedkin.data.load("metr-la", stride=6)
    assert len(federation) == 207
    assert federation.task.output_shape == (12,)
    assert "one week of 17" in federation.notes[0]
    mean, std = federation.truth["mean"], federation.truth["std"]
    x, y = federation.test.x * std + mean, federation.test.y * std + mean
    persistence = np.abs(y[:, 2] - x[:, -1]).mean()
    assert persistence == pytest.approx(3.24, abs=0.5)  # measured over the whole week
    weights = federation.graph.adjacency
    assert weights.sum() > 0


def test_shakespeare_roles(real_data: Path) -> None:
    tiny = fedkin.data.load("tiny-shakespeare")
    assert len(tiny) == 99
    plays = fedkin.data.load("shakespeare", minimum=10_000)
    assert {name.split(": ")[0] for name in plays.names} >= {"hamlet", "macbeth", "othello"}
    assert "macbeth: LADY MACBETH" in plays.names
    assert "not the file and the split of LEAF" in plays.notes[0]
    assert plays.train.x.max() < 100


@pytest.mark.parametrize("name", ["mnist", "har", "metr-la", "tiny-shakespeare"])
def test_source_builds_the_same_again(real_data: Path, name: str) -> None:
    federation = fedkin.data.load(name, clients=5, seed=2)
    assert fedkin.data.load(**federation.source).fingerprint() == federation.fingerprint()
