"""Small files in the format of every data set, so that each table can be tried without the real ones."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from fedkin.data import registry
from fedkin.data.plays import as_arrays
from fedkin.data.sets import harbox, svhn
from fedkin.data.source import File, Source


def _images(rng: np.random.Generator, *shape: int) -> dict[str, np.ndarray]:
    parts = {"train": 1000, "test": 200}
    made = {f"{part}_x": rng.integers(0, 256, (n, *shape), dtype=np.uint8) for part, n in parts.items()}
    return made | {f"{part}_y": rng.permutation(np.arange(n) % 10).astype(np.uint8) for part, n in parts.items()}


def _plain_arrays(rng: np.random.Generator) -> dict[str, dict[str, np.ndarray]]:
    """The arrays that the readers of these sets make."""
    roles = {f"play: {name}": [f"{name} says line {i:03d}" for i in range(150)] for name in ("HAMLET", "GHOST", "PAGE")}
    weights = rng.uniform(0.1, 1, (8, 8)).astype(np.float32)
    return {
        "mnist": _images(rng, 1, 28, 28),
        "cifar10": _images(rng, 3, 32, 32),
        "har": {
            "features": rng.uniform(-1, 1, (360, 561)).astype(np.float32),
            "inertial": np.zeros((360, 9, 128), dtype=np.float32),
            "y": rng.permutation(np.arange(360) % 6).astype(np.uint8),
            "subject": (1 + np.arange(360) % 6).astype(np.uint8),
        },
        "metr-la": {
            "speed": (50 + 10 * rng.normal(size=(600, 8))).astype(np.float32),
            "adjacency": weights,
            "sensor_ids": np.arange(8),
            "latlon": rng.normal(size=(8, 2)),
        },
        "shakespeare": as_arrays(roles),
    }


def _write_svhn(folder: Path, rng: np.random.Generator) -> None:
    for part, n in (("train", 600), ("test", 60)):
        x = rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
        savemat(folder / f"{part}_32x32.mat", {"X": x, "y": (1 + np.arange(n) % 10)[:, None].astype(np.uint8)})


def _read_svhn(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """As svhn.read_upstream, without the published counts per class."""
    (train_x, train_y), (test_x, test_y) = (svhn.parse_mat(path) for path in files.values())
    return {"train_x": train_x, "train_y": train_y, "test_x": test_x, "test_y": test_y}


def _write_harbox(path: Path, rng: np.random.Generator) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for user in range(1, 5):
            for activity in harbox.ACTIVITY_OF_FILE:
                lines = rng.normal(size=(800, 9))
                text = "\n".join(f"{i} " + " ".join(f"{v:.4f}" for v in line) for i, line in enumerate(lines))
                archive.writestr(f"large_scale_HARBox/{user}/{activity}_train.txt", text)


def _write_vehicle(path: Path, rng: np.random.Generator) -> None:
    x, y = np.empty((4, 1), dtype=object), np.empty((4, 1), dtype=object)
    for sensor in range(4):
        x[sensor, 0], y[sensor, 0] = rng.normal(size=(60, 100)), np.where(np.arange(60) % 2, 1.0, -1.0)[:, None]
    savemat(path, {"X": x, "Y": y})


@pytest.fixture(scope="session")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("small-data"), np.random.default_rng(0)
    _write_svhn(folder, rng)
    _write_harbox(folder / "large_scale_HARBox.zip", rng)
    _write_vehicle(folder / "vehicle.mat", rng)
    for name, arrays in _plain_arrays(rng).items():
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.fixture
def small_data(
    _files: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Every data set of the papers, at hand and small."""
    from fedkin.reproduction import cells

    def load(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
        with np.load(next(iter(files.values())), allow_pickle=False) as content:
            return dict(content)

    sources = {name: Source("small", (File(f"{name}.npz"),), load) for name in _plain_arrays(np.random.default_rng(0))}
    sources["svhn"] = Source("small", (File("train_32x32.mat"), File("test_32x32.mat")), _read_svhn)
    sources["harbox"] = Source("small", (File("large_scale_HARBox.zip"),), harbox.read_upstream)
    for name, source in sources.items():
        monkeypatch.setitem(registry._sets(), name, replace(registry.get(name), sources=(source,)))
    monkeypatch.setenv("FEDKIN_DATA", str(_files))
    cells._federation.cache_clear()
    yield _files
    cells._federation.cache_clear()
