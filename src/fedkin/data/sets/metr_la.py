"""METR-LA: traffic speeds on the highways of Los Angeles; a client is a road sensor, the graph is the road network."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedkin.data.archive import open_archive
from fedkin.data.federate import Recipe
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check
from fedkin.errors import FedkinError, unknown
from fedkin.federation import Federation, Split
from fedkin.task import Forecast, Task

WEEK = "METR-LA: one week of 17 (2,016 of 34,272 steps), gaps interpolated; not comparable with published results"


def road_graph(distances: np.ndarray, threshold: float = 0.1) -> np.ndarray:
    """DCRNN's kernel: exp(−d²/σ²), σ the standard deviation of all known distances, entries below `threshold` set to 0.

    `distances` is (K, K) directed, infinity where no road distance is known.
    """
    sigma = distances[np.isfinite(distances)].std()
    weights = np.exp(-np.square(distances / sigma))
    return np.where(weights < threshold, 0.0, weights).astype(np.float32)


def read_upstream(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """DCRNN's files: the pandas HDF5 table of speeds, and text files of sensor ids, places and road distances."""
    try:
        import h5py  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise FedkinError("metr-la.h5 needs h5py; install it with: pip install h5py") from None
    import pandas as pd

    ids = files["graph_sensor_ids.txt"].read_text().strip().split(",")
    place = {name: k for k, name in enumerate(ids)}
    try:
        with h5py.File(files["metr-la.h5"], "r") as store:
            columns = [c.decode() if isinstance(c, bytes) else str(c) for c in store["df/axis0"][:]]
            speed = store["df/block0_values"][:].astype(np.float32)
    except (OSError, KeyError) as problem:
        raise FedkinError(
            f"{files['metr-la.h5']}: truncated or damaged HDF5 file ({problem}); get it again"
        ) from problem
    check(sorted(columns) == sorted(ids), "metr-la.h5 and graph_sensor_ids.txt list different sensors")
    roads = pd.read_csv(files["distances_la_2012.csv"], dtype={"from": str, "to": str})
    distances = np.full((len(ids), len(ids)), np.inf)
    for start, end, cost in roads.itertuples(index=False):
        if start in place and end in place:
            distances[place[start], place[end]] = cost
    places = pd.read_csv(files["graph_sensor_locations.csv"], dtype={"sensor_id": str}).set_index("sensor_id").loc[ids]
    return {
        "speed": speed[:, [columns.index(name) for name in ids]],
        "adjacency": road_graph(distances),
        "sensor_ids": np.array(ids, dtype=np.int64),
        "latlon": places[["latitude", "longitude"]].to_numpy(np.float64),
    }


def read_bundle(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The archive of PyTorch Geometric Temporal: node_values.npy (steps, 207, 2), adj_mat.npy (207, 207)."""
    with open_archive(next(iter(files.values()))) as archive:

        def array(name: str) -> np.ndarray:
            return np.load(io.BytesIO(archive.read(name)), allow_pickle=False)

        speed, adjacency = array("node_values.npy")[:, :, 0], array("adj_mat.npy")
    check(speed.shape == (34272, 207) and adjacency.shape == (207, 207), f"METR-LA: speeds of shape {speed.shape}")
    check(
        abs(speed[:23974].mean() - 54.4) < 0.5, f"METR-LA: mean speed {speed[:23974].mean():.2f}, about 54.4 expected"
    )
    return {"speed": speed.astype(np.float32), "adjacency": adjacency.astype(np.float32)}


def read_week(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The array layout: one week with graph, ids and places."""
    with np.load(next(iter(files.values())), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in ("speed", "adjacency", "sensor_ids", "latlon")}
    check(arrays["speed"].shape == (2016, 207), f"METR-LA: speeds of shape {arrays['speed'].shape}")
    return arrays


def series_windows(series: np.ndarray, length: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """All `length` past and `horizon` coming values of a series (T, K), as views (n, K, length) and (n, K, horizon)."""
    view = np.lib.stride_tricks.sliding_window_view(series, length + horizon, axis=0)
    return view[..., :length], view[..., length:]


GRAPH = "https://raw.githubusercontent.com/liyaguang/DCRNN/master/data/sensor_graph"


@dataset(
    name="metr-la",
    description="traffic speeds on Los Angeles highways, with the road graph",
    size="207 sensors, 34,272 steps of 5 minutes, 12 past → 12 coming values, 57 MB",
    clients="road sensors",
    split="in time, 70/10/20",
    metric="MAE in mph, 15 to 60 minutes ahead (mae_15, …); the MSE is that of z-scores",
    test_fraction=0.2,
    validation_fraction=0.1,
    licence="none stated for the data; DCRNN is MIT",
    citation="Y. Li et al., Diffusion Convolutional Recurrent Neural Network, ICLR 2018",
    sources=(
        Source(
            "dcrnn",
            (
                File("metr-la.h5"),
                File("graph_sensor_ids.txt", f"{GRAPH}/graph_sensor_ids.txt"),
                File("graph_sensor_locations.csv", f"{GRAPH}/graph_sensor_locations.csv"),
                File("distances_la_2012.csv", f"{GRAPH}/distances_la_2012.csv"),
            ),
            read_upstream,
            ("metr_la", "metr-la"),
        ),
        Source(
            "upstream",
            (File("METR-LA.zip", "https://graphmining.ai/temporal_datasets/METR-LA.zip"),),
            read_bundle,
            ("metr_la", "metr-la"),
        ),
        Source("arrays", (File("metr_la_week1.npz"),), read_week, ("metr_la", "metr-la"), notes=(WEEK,)),
    ),
)
def metr_la(
    arrays: Arrays, recipe: Recipe, length: int = 12, horizon: int = 12, missing: str = "keep", stride: int = 1
) -> Federation:
    """One client per sensor: `length` past speeds → `horizon` coming ones, split in time (70/10/20).

    Speeds are z-scored by mean and deviation of all training inputs (`truth["mean"]`, `truth["std"]`). A speed of 0 is
    a missing value; it stays as −mean/std, for metrics to mask; missing="drop" leaves out windows that hold one.
    `stride` keeps every so many windows. Coordinates are in `truth["coordinates"]`, the graph is the road graph made
    symmetric by the larger weight of the two directions.
    """
    from fedkin.graphs import ClientGraph

    if recipe.partition not in (None, "natural", "column") or recipe.downsample:
        raise FedkinError("metr-la has one client per sensor; drop partition and downsample")
    if missing not in ("keep", "drop"):
        raise unknown("missing", missing, ["keep", "drop"])
    speed = np.asarray(arrays["speed"])
    if min(length, horizon, stride) < 1 or length + horizon >= len(speed):
        raise FedkinError(f"length {length}, horizon {horizon} and stride {stride} do not fit {len(speed)} steps")
    ids = arrays["sensor_ids"] if "sensor_ids" in arrays else np.arange(speed.shape[1])
    everyone = {f"sensor-{number:03d}": np.array([k]) for k, number in enumerate(ids)}
    chosen = recipe.choose(everyone)
    own = np.concatenate(list(chosen.values()))
    count = len(speed) - length - horizon + 1
    test = round(recipe.test_fraction * count)
    train = round((1 - recipe.test_fraction - recipe.validation_fraction) * count)
    past, coming = series_windows(speed, length, horizon)
    mean, std = past[:train].mean(dtype=np.float64), past[:train].std(dtype=np.float64)
    splits = []
    for start, end in ((0, train), (train, count - test), (count - test, count)):
        rows = np.arange(start, end, stride)
        x, y = (np.ascontiguousarray(v[rows][:, own].swapaxes(0, 1)) for v in (past, coming))
        keep = np.ones(x.shape[:2], dtype=bool)
        if missing == "drop":
            keep = (x != 0).all(axis=2) & (y != 0).all(axis=2)
        offsets = np.cumsum([0, *keep.sum(axis=1)]).astype(np.int64)
        x, y = (((v[keep] - mean) / std).astype(np.float32) for v in (x, y))
        splits.append(Split(x, y, offsets))
    weights = np.maximum(arrays["adjacency"], arrays["adjacency"].T)[np.ix_(own, own)].astype(np.float64)
    np.fill_diagonal(weights, 0.0)
    truth = {"mean": np.array([mean]), "std": np.array([std])}
    if "latlon" in arrays:
        truth["coordinates"] = np.asarray(arrays["latlon"])[own]
    return Federation(
        tuple(chosen),
        Task("regression", (length,), output_shape=(horizon,), forecast=Forecast(float(mean), float(std))),
        train=splits[0],
        validation=splits[1],
        test=splits[2],
        graph=ClientGraph(weights, names=list(chosen)),
        truth=truth,
    )
