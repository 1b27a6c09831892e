from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.federate import Recipe
from fedkin.data.sets import metr_la
from fedkin.errors import FedkinError

SPLIT = Recipe(test_fraction=0.2, validation_fraction=0.1)


def dense(federation: fedkin.Federation) -> np.ndarray:
    adjacency = federation.graph.adjacency
    return adjacency.toarray() if hasattr(adjacency, "toarray") else np.asarray(adjacency)


def arrays(steps: int = 200, sensors: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    adjacency = np.zeros((sensors, sensors), dtype=np.float32)
    adjacency[0, 1], adjacency[1, 0], adjacency[2, 3] = 0.2, 0.7, 0.5
    np.fill_diagonal(adjacency, 1.0)
    return {
        "speed": (50 + 10 * rng.normal(size=(steps, sensors))).astype(np.float32),
        "adjacency": adjacency,
        "sensor_ids": np.arange(700, 700 + sensors),
        "latlon": rng.normal(size=(sensors, 2)),
    }


def test_windows_are_chronological_and_scaled_by_training_windows() -> None:
    data = arrays()
    federation = metr_la.metr_la(data, SPLIT)
    count = 200 - 23
    train, test = round(0.7 * count), round(0.2 * count)
    assert federation.train.sizes.tolist() == [train] * 4
    assert federation.test.sizes.tolist() == [test] * 4
    mean, std = federation.truth["mean"], federation.truth["std"]
    for k, first in ((0, 0), (3, 17)):
        x, y = federation.train[k]
        assert np.allclose(x[first] * std + mean, data["speed"][first : first + 12, k], atol=1e-4)
        assert np.allclose(y[first] * std + mean, data["speed"][first + 12 : first + 24, k], atol=1e-4)
    x, y = federation.test[2]
    assert np.allclose(y[-1] * std + mean, data["speed"][-12:, 2], atol=1e-4)
    assert federation.train.x.mean() == pytest.approx(0, abs=1e-5)
    assert federation.train.x.std() == pytest.approx(1, abs=1e-4)


def test_the_published_split_of_the_full_set() -> None:
    speed = np.random.default_rng(0).normal(50, 10, (34272, 2)).astype(np.float32)
    federation = metr_la.metr_la({"speed": speed, "adjacency": np.ones((2, 2), dtype=np.float32)}, SPLIT)
    assert [s.sizes.tolist() for s in (federation.train, federation.validation, federation.test)] == [
        [23974] * 2,
        [3425] * 2,
        [6850] * 2,
    ]


def test_the_road_graph_is_symmetric_by_the_larger_weight() -> None:
    federation = metr_la.metr_la(arrays(), SPLIT)
    adjacency = dense(federation)
    assert adjacency[0, 1] == adjacency[1, 0] == pytest.approx(0.7)
    assert adjacency[3, 2] == pytest.approx(0.5)
    assert not adjacency.diagonal().any()
    assert federation.names == ("sensor-700", "sensor-701", "sensor-702", "sensor-703")
    assert federation.truth["coordinates"].shape == (4, 2)


def test_some_sensors_only() -> None:
    federation = metr_la.metr_la(arrays(), replace(SPLIT, clients=2))
    assert len(federation) == 2
    assert federation.graph.names == federation.names
    assert federation.truth["coordinates"].shape == (2, 2)


def test_windows_with_missing_values_can_be_dropped() -> None:
    data = arrays()
    data["speed"][30, 1] = 0
    kept = metr_la.metr_la(data, SPLIT)
    dropped = metr_la.metr_la(data, SPLIT, missing="drop")
    assert (kept.train.sizes - dropped.train.sizes).tolist() == [0, 24, 0, 0]
    missing = (0 - kept.truth["mean"]) / kept.truth["std"]
    assert np.isclose(kept.train[1][0], missing, atol=1e-4).any()
    assert not np.isclose(dropped.train[1][0], missing, atol=1e-4).any()


def test_dcrnn_kernel() -> None:
    distances = np.array([[0.0, 1.0, np.inf], [4.0, 0.0, np.inf], [np.inf, np.inf, 0.0]])
    sigma = np.std([0, 1, 4, 0, 0])
    weights = metr_la.road_graph(distances)
    assert weights[0, 1] == pytest.approx(np.exp(-1 / sigma**2))
    assert weights[1, 0] == 0  # exp(−16/σ²) is below the threshold
    assert weights[0, 2] == 0
    assert weights[2, 2] == 1


def test_dcrnn_files(tmp_path: Path, cache: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="metr-la.h5 needs h5py")
    data = arrays()
    ids = ["773869", "767541", "767542"]
    with h5py.File(tmp_path / "metr-la.h5", "w") as store:  # as pandas writes a frame of one block
        group = store.create_group("df")
        order = [2, 0, 1]
        group["axis0"] = np.array([ids[k].encode() for k in order])
        group["block0_items"] = group["axis0"][:]
        group["block0_values"] = data["speed"][:, order].astype(np.float64)
        group["axis1"] = np.arange(200)
    (tmp_path / "graph_sensor_ids.txt").write_text(",".join(ids))
    (tmp_path / "graph_sensor_locations.csv").write_text(
        "index,sensor_id,latitude,longitude\n0,767541,34.1,-118.3\n1,773869,34.2,-118.2\n2,767542,34.3,-118.1\n"
    )
    (tmp_path / "distances_la_2012.csv").write_text(
        "from,to,cost\n773869,773869,0\n773869,767541,1000\n767541,767542,9000\n1,2,3\n"
    )
    federation = fedkin.data.load("metr-la", directory=tmp_path)
    assert federation.names == ("sensor-773869", "sensor-767541", "sensor-767542")
    assert federation.truth["coordinates"][:, 0].tolist() == [34.2, 34.1, 34.3]
    speed = federation.train[0][0][0] * federation.truth["std"] + federation.truth["mean"]
    assert np.allclose(speed, data["speed"][:12, 0], atol=1e-3)
    assert dense(federation)[0, 1] > 0.1
    (tmp_path / "metr-la.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(FedkinError, match="damaged HDF5"):
        fedkin.data.load("metr-la", directory=tmp_path)


def test_a_bundle_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "METR-LA.zip", "w") as archive:
        for name, array in (("node_values", np.zeros((10, 207, 2))), ("adj_mat", np.zeros((207, 207)))):
            with archive.open(f"{name}.npy", "w") as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
    with pytest.raises(FedkinError, match="speeds of shape"):
        metr_la.read_bundle({"a": tmp_path / "METR-LA.zip"})


@pytest.mark.parametrize(
    ("recipe", "options", "words"),
    [
        (replace(SPLIT, partition="iid"), {}, "one client per sensor"),
        (replace(SPLIT, clients=9), {}, "has only 4"),
        (SPLIT, {"missing": "fill"}, "missing"),
        (SPLIT, {"length": 300}, "do not fit 200 steps"),
    ],
)
def test_bad_arguments(recipe: Recipe, options: dict, words: str) -> None:
    with pytest.raises(FedkinError, match=words):
        metr_la.metr_la(arrays(), recipe, **options)
