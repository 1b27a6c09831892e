"""Vehicle Sensor: does an assault amphibious vehicle or a dragon wagon pass? A client is a sensor beside the road."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.archive import open_archive
from fedkin.data.federate import Recipe, pooled
from fedkin.data.matlab import read_matlab
from fedkin.data.registry import dataset
from fedkin.data.sets.har import as_stored
from fedkin.data.source import Arrays, File, Source, check
from fedkin.errors import FedkinError
from fedkin.federation import Federation

SENSOR_FILE = re.compile(r"(?:^|/)([^/]*(?:aav|dw)[^/]*)/s(\d+)/([^/]*feat[^/]*)$", re.IGNORECASE)

HALF = "Vehicle: the training half of Ditto's release (1,860 samples, standardised per sensor); the test half was not found"
LEAF = "sha256:a8c8b22a89ea64e5a563cffe94352b48c1f44a02100fd3256adfc09dc43d9ddc"


def read_mat(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """MOCHA's layout: cells X and Y, one per sensor: X{k} (n_k, 100) or (n_k, 101) with a constant last, Y{k} ±1."""
    path = next(iter(files.values()))
    cells = list(zip(*(cell.ravel() for cell in read_matlab(path, "X", "Y"))))
    for k, (x, y) in enumerate(cells):
        check(x.ndim == 2 and x.shape[1] >= 100 and len(x) == y.size, f"{path}: cell {k + 1} has shape {x.shape}")
    sizes = [len(x) for x, _ in cells]
    return {
        "x": np.concatenate([x[:, :100] for x, _ in cells]).astype(np.float32),
        "y": (np.concatenate([y.ravel() for _, y in cells]) > 0).astype(np.uint8),
        "sensor": np.repeat(np.arange(1, len(cells) + 1), sizes).astype(np.int16),
    }


def read_events(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """Duarte and Hu's event archive: `<run>/s<sensor>/` holds an acoustic and a seismic table (first 50 columns used).

    The run's folder name says which vehicle drove: "aav…" (label 1) or "dw…" (label 0).
    """
    import pandas as pd

    tables: dict[tuple[str, int], dict[str, np.ndarray]] = defaultdict(dict)
    with open_archive(next(iter(files.values()))) as archive:
        for name in archive.names:
            match = SENSOR_FILE.search(name)
            if match is None or "__MACOSX" in name:
                continue
            table = pd.read_csv(io.BytesIO(archive.read(name)), sep=r"\s+", header=None).to_numpy(np.float32)
            check(table.shape[1] >= 50, f"{name}: {table.shape[1]} columns, at least 50 expected")
            tables[match[1], int(match[2])][match[3]] = table[:, :50]
        check(bool(tables), f"{archive.path} holds no feature files <run>/s<sensor>/*feat*")
    x, y, sensor = [], [], []
    for (run, number), pair in sorted(tables.items(), key=lambda item: (item[0][1], item[0][0])):
        check(len(pair) == 2, f"run {run}, sensor {number}: {len(pair)} feature files, acoustic and seismic expected")
        acoustic, seismic = (pair[name] for name in sorted(pair))
        check(len(acoustic) == len(seismic), f"run {run}, sensor {number}: feature files of different length")
        x.append(np.concatenate([acoustic, seismic], axis=1))
        y.append(np.full(len(acoustic), "aav" in run.lower(), dtype=np.uint8))
        sensor.append(np.full(len(acoustic), number, dtype=np.int16))
    return {"x": np.concatenate(x), "y": np.concatenate(y), "sensor": np.concatenate(sensor)}


def read_leaf(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """LEAF's form: users, num_samples, and user_data: {user: {"x": n lists of 100 numbers, "y": n labels ±1}}."""
    path = next(iter(files.values()))
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        told = json.loads(text)
        users, sizes = list(told["users"]), list(told["num_samples"])
        pairs = [
            (np.array(own["x"], float), np.array(own["y"], float).ravel()) for own in map(told["user_data"].get, users)
        ]
    except (EOFError, gzip.BadGzipFile, KeyError, TypeError, ValueError) as problem:
        raise FedkinError(f"{path}: damaged, or not in LEAF's form ({problem!r}); get it again") from problem
    for user, size, (x, y) in zip(users, sizes, pairs):
        check(x.shape == (size, 100) and y.shape == (size,), f"{path}: user {user!r} has inputs of shape {x.shape}")
        check(np.isin(y, (-1, 1)).all(), f"{path}: user {user!r} has labels other than -1 and 1")
    return {
        "x": np.concatenate([x for x, _ in pairs]).astype(np.float32),
        "y": (np.concatenate([y for _, y in pairs]) > 0).astype(np.uint8),
        "sensor": np.repeat(np.arange(1, len(users) + 1), sizes).astype(np.int16),
    }


@dataset(
    name="vehicle",
    description="two kinds of vehicle from acoustic and seismic features",
    size="23 sensors, 50 acoustic + 50 seismic features, 2 classes",
    clients="sensors",
    split="samples of a sensor at random by seed, stratified by class, 75/25",
    metric="accuracy",
    licence="none stated; for research",
    citation="M. Duarte, Y. H. Hu, Vehicle Classification in Distributed Sensor Networks, JPDC 64(7), 2004",
    sources=(
        Source(
            "upstream",
            (File("event.zip", "http://www.ecs.umass.edu/~mduarte/images/event.zip"),),
            read_events,
            ("vehicle",),
        ),
        Source("mat", (File("vehicle.mat"),), read_mat, ("vehicle",)),
        Source(
            "leaf",
            (
                File(
                    "mytrain.json",
                    "https://raw.githubusercontent.com/litian96/ditto/602f571de561f7796104860108dfa91182bfbcd8/"
                    "data/vehicle/data/train/mytrain.json",
                    LEAF,
                    LEAF,
                ),
            ),
            read_leaf,
            ("vehicle",),
            notes=(HALF,),
        ),
    ),
)
def vehicle(arrays: Arrays, recipe: Recipe, samples: int | None = None) -> Federation:
    """One client per sensor, inputs (100,), labels DW (0) and AAV (1)."""
    owner = np.array([f"sensor-{number:02d}" for number in arrays["sensor"]])
    found = len(np.unique(owner))
    notes = () if found == 23 else (f"Vehicle: {found} sensors in these files, 23 in the published set",)
    return pooled(recipe, arrays["x"], arrays["y"], ("DW", "AAV"), owner, as_stored, samples, notes)
