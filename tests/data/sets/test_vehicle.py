from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

import fedkin
from fedkin.data.federate import Recipe
from fedkin.data.sets import vehicle
from fedkin.errors import FedkinError


def cells(arrays: list[np.ndarray]) -> np.ndarray:
    out = np.empty((len(arrays), 1), dtype=object)
    out[:, 0] = arrays
    return out


def test_matlab_cells_become_sensors(tmp_path: Path, cache: Path) -> None:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 100)) for n in (20, 31, 24)]
    y = [rng.choice([-1.0, 1.0], (len(part), 1)) for part in x]
    savemat(tmp_path / "vehicle.mat", {"X": cells(x), "Y": cells(y)})
    federation = fedkin.data.load("vehicle", directory=tmp_path)
    assert federation.names == ("sensor-01", "sensor-02", "sensor-03")
    assert federation.task.classes == ("DW", "AAV")
    assert federation.notes == ("Vehicle: 3 sensors in these files, 23 in the published set",)
    sizes = federation.train.sizes + federation.test.sizes
    assert sizes.tolist() == [20, 31, 24]
    assert np.isin(federation.train[1][0], x[1].astype(np.float32)).all()
    assert federation.label_counts("train")[0, 1] + federation.label_counts("test")[0, 1] == (y[0] > 0).sum()


def events(
    path: Path, rng: np.random.Generator, skip: str = ""
) -> dict[tuple[str, int], tuple[np.ndarray, np.ndarray]]:
    content = {}
    with zipfile.ZipFile(path, "w") as archive:
        for run in ("aav3", "dw3"):
            for sensor in (1, 51):
                pair = rng.normal(size=(12, 57)), rng.normal(size=(12, 57))
                content[run, sensor] = pair
                for kind, values in zip(("aco", "sei"), pair):
                    name = f"event/{run}/s{sensor}/{run}_s{sensor}_{kind}_feat.txt"
                    if name.endswith(skip) and skip:
                        continue
                    archive.writestr(name, "\n".join(" ".join(f"{v:.6f}" for v in row) for row in values))
    return content


def test_the_event_archive_is_parsed(tmp_path: Path, cache: Path) -> None:
    content = events(tmp_path / "event.zip", np.random.default_rng(1))
    arrays = vehicle.read_events({"a": tmp_path / "event.zip"})
    for (run, sensor), (acoustic, seismic) in content.items():
        rows = (arrays["sensor"] == sensor) & (arrays["y"] == (run == "aav3"))
        assert np.allclose(arrays["x"][rows, :50], acoustic[:, :50], atol=1e-5)
        assert np.allclose(arrays["x"][rows, 50:], seismic[:, :50], atol=1e-5)
    assert fedkin.data.load("vehicle", directory=tmp_path).names == ("sensor-01", "sensor-51")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    events(tmp_path / "event.zip", np.random.default_rng(1), skip="dw3_s51_sei_feat.txt")
    with pytest.raises(FedkinError, match="sensor 51: 1 feature files"):
        vehicle.read_events({"a": tmp_path / "event.zip"})
    (tmp_path / "vehicle.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(FedkinError, match="truncated or damaged MATLAB"):
        vehicle.read_mat({"a": tmp_path / "vehicle.mat"})
    savemat(tmp_path / "narrow.mat", {"X": cells([np.zeros((3, 9))]), "Y": cells([np.ones((3, 1))])})
    with pytest.raises(FedkinError, match="cell 1 has shape"):
        vehicle.read_mat({"a": tmp_path / "narrow.mat"})


def leaf(sizes: tuple[int, ...] = (12, 7), label: float = -1.0) -> dict:
    rng = np.random.default_rng(0)
    users = [f"f_{k:05d}" for k in range(len(sizes))]
    data = {
        u: {"x": rng.normal(size=(n, 100)).tolist(), "y": [[label], [1.0]] * (n // 2) + [[1.0]] * (n % 2)}
        for u, n in zip(users, sizes)
    }
    return {"users": users, "num_samples": list(sizes), "user_data": data}


def test_the_part_in_leafs_form(tmp_path: Path, cache: Path) -> None:
    told = leaf()
    (tmp_path / "mytrain.json.gz").write_bytes(gzip.compress(json.dumps(told).encode()))
    arrays = vehicle.read_leaf({"a": tmp_path / "mytrain.json.gz"})
    assert arrays["sensor"].tolist() == [1] * 12 + [2] * 7
    assert arrays["y"].tolist() == [0, 1] * 6 + [0, 1] * 3 + [1]
    assert np.allclose(arrays["x"][12], told["user_data"]["f_00001"]["x"][0], atol=1e-6)
    assert vehicle.vehicle(arrays, Recipe()).names == ("sensor-01", "sensor-02")
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.load("vehicle", directory=tmp_path)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"users": ["a"]}, "not in LEAF's form"),
        (leaf() | {"num_samples": [12, 8]}, "'f_00001' has inputs of shape"),
        (leaf(label=0.0), "labels other than -1 and 1"),
    ],
)
def test_damaged_leaf_files_are_refused(tmp_path: Path, told: dict, words: str) -> None:
    (tmp_path / "mytrain.json").write_text(json.dumps(told))
    with pytest.raises(FedkinError, match=words):
        vehicle.read_leaf({"a": tmp_path / "mytrain.json"})


@pytest.mark.real_data
def test_the_real_part(real_data: Path) -> None:
    federation = fedkin.data.load("vehicle")
    sizes = federation.train.sizes + federation.test.sizes
    assert (len(federation), sizes.sum(), sizes.min(), sizes.max()) == (23, 1860, 7, 534)
    assert "training half" in federation.notes[0]
    assert fedkin.data.load("vehicle").fingerprint() == federation.fingerprint()
