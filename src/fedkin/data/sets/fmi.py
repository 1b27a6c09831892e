"""Weather of Finland: a client is a station of the Finnish Meteorological Institute, its neighbours are the nearest ones.

Two tasks: `fmi`, the highs and lows of five days → the next day's high; `fmi-hourly`, twelve hours → the coming three.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedkin.data.federate import Recipe
from fedkin.data.natural import clients_of, series
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays, File, Source, check
from fedkin.data.tabular import read_table
from fedkin.errors import FedkinError
from fedkin.federation import PARTS, Federation

if TYPE_CHECKING:
    from fedkin.graphs import ClientGraph

DAY, HOUR = 24 * 60, 60  # minutes
DAILY = "sha256:b96b79f73b232c714ea6be585402fbc0d4891663e1d6f16d570ed291f3aeb336"
HOURLY = "sha256:933843e9e575ca1d0ee5860ad32ee14bf24a78623910eab3e3b1d047792b8b93"
LICENCE = "CC BY 4.0 (observations, Finnish Meteorological Institute, opendata.fmi.fi); the course's repository is MIT"
CITATION = (
    "Finnish Meteorological Institute, open data; as in A. Jung, Federated Learning: From Theory to Practice, "
    "Aalto University, github.com/alexjungaalto/FederatedLearning"
)
LIST = re.compile(r"\[[-+.\d\s,eE]*\]")


def five_days(texts: Sequence[str], path: Path, column: str) -> np.ndarray:
    """Lists of five numbers, written as text, as an array (n, 5)."""
    for number, text in enumerate(texts):
        found = LIST.fullmatch(str(text).strip())
        check(found is not None and text.count(",") == 4, f"{path}: line {number + 2}, {column} is no list of five")
    return np.array([[float(value) for value in text.strip()[1:-1].split(",")] for text in texts])


def read_daily(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The course's table: Name, Latitude, Longitude, lists Tmax and Tmin of five days, y_Tmax and y_Tmin of the next."""
    path = next(iter(files.values()))
    table = read_table(path)
    wanted = ["Name", "Latitude", "Longitude", "Tmax", "Tmin", "y_Tmax", "y_Tmin"]
    check(list(table.columns) == wanted, f"{path}: columns {list(table.columns)}, expected {wanted}")
    counts = table.groupby("Name").size()
    check(
        counts.nunique() == 1, f"{path}: stations hold {counts.min()} to {counts.max()} windows, all as many expected"
    )
    highs, lows = (five_days(table[column].tolist(), path, column) for column in ("Tmax", "Tmin"))
    return {
        "past": np.concatenate([lows, highs], axis=1),
        "coming": table[["y_Tmax"]].to_numpy(np.float64),
        "station": table["Name"].to_numpy("U"),
        "window": table.groupby("Name").cumcount().to_numpy(np.int16),
        "latlon": table[["Latitude", "Longitude"]].to_numpy(np.float64),
    }


def read_hourly(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The course's table: Latitude, Longitude, Timestamp, temp, name, in any order → temperatures (hours, stations)."""
    import pandas as pd

    path = next(iter(files.values()))
    table = read_table(path)
    wanted = ["Latitude", "Longitude", "Timestamp", "temp", "name"]
    check(list(table.columns) == wanted, f"{path}: columns {list(table.columns)}, expected {wanted}")
    try:
        table["Timestamp"] = pd.to_datetime(table["Timestamp"])
        grid = table.pivot(index="Timestamp", columns="name", values="temp").asfreq("h")
    except ValueError as problem:
        raise FedkinError(f"{path}: not one temperature an hour and station ({problem}); get it again") from problem
    places = table.groupby("name")[["Latitude", "Longitude"]].first().loc[grid.columns]
    return {
        "temperature": grid.to_numpy(np.float64),
        "station": grid.columns.to_numpy("U"),
        "latlon": places.to_numpy(np.float64),
    }


def nearest_stations(places: np.ndarray, names: Sequence[str], k: int) -> ClientGraph:
    """Each station joined with its k nearest by great-circle distance d, of weight exp(−d²/σ²); see `coordinates`."""
    from fedkin import graphs

    if k < 1:
        raise FedkinError(f"neighbours is {k}; at least one is needed")
    if len(names) == 1:
        return graphs.empty(names)
    return graphs.coordinates(places, k=min(k, len(names) - 1), names=names, threshold=0.0)


@dataset(
    name="fmi",
    description="the next day's high from five days of highs and lows, with the stations' places",
    size="192 stations, 10 windows each, 10 temperatures → 1, graph of nearest stations, 0.2 MB",
    clients="weather stations",
    split="three of ten windows test, the same at every station (drawn by seed), so no day of a test is trained on",
    metric="MAE in °C (mae_1440); the MSE is that of z-scores",
    test_fraction=0.3,
    licence=LICENCE,
    citation=CITATION,
    sources=(
        Source(
            "course",
            (
                File(
                    "FMI_data_2025.csv",
                    "https://raw.githubusercontent.com/alexjungaalto/FederatedLearning/"
                    "a960131983633da24ef9c13b7d38af035276ab9e/Edition2025/CodingAssignments/Assignment3/FMI_data_2025.csv",
                    DAILY,
                    DAILY,
                ),
            ),
            read_daily,
            ("fmi",),
        ),
    ),
)
def fmi(arrays: Arrays, recipe: Recipe, neighbours: int = 5) -> Federation:
    """One client per station: five lows, five highs → the sixth day's high, in z-scores (`truth["mean"]`, `["std"]`).

    The file gives no dates, but window w covers the same six days at every station, and no two windows of a station
    share a day. So whole windows are drawn for the test. `truth["coordinates"]` holds latitude and longitude, the graph
    joins each station with its `neighbours` nearest.
    """
    groups = clients_of(recipe, arrays["station"], "weather station")
    window = np.asarray(arrays["window"])
    count = int(window.max()) + 1
    drawn = recipe.streams.generator("split", "windows").permutation(count)
    test, validation = (round(share * count) for share in (recipe.test_fraction, recipe.validation_fraction))
    chosen = dict(zip(("test", "validation", "train"), np.split(drawn, [test, test + validation])))
    parts = {name: {p: own[np.isin(window[own], chosen[p])] for p in PARTS} for name, own in groups.items()}
    places = np.array([arrays["latlon"][own[0]] for own in groups.values()])
    graph = nearest_stations(places, tuple(groups), neighbours)
    return series(recipe, parts, arrays["past"], arrays["coming"], DAY, (DAY,), places, graph)


@dataset(
    name="fmi-hourly",
    description="the coming three hours' temperatures from the last twelve, with the stations' places",
    size="207 stations, 96 hours around New Year 2024, 12 temperatures → 3, graph of nearest stations, 1.3 MB",
    clients="weather stations",
    split="in time: windows of the first 72 hours train, of the last 24 test; none crosses the cut",
    metric="MAE in °C, one to three hours ahead (mae_60, mae_120, mae_180); the MSE is that of z-scores",
    licence=LICENCE,
    citation=CITATION,
    sources=(
        Source(
            "course",
            (
                File(
                    "FMI_data.csv",
                    "https://raw.githubusercontent.com/alexjungaalto/FederatedLearning/"
                    "917ddba8716277151400430224b8373c7536daa5/Edition2024/Assignments/Assignment_MLBasicsData.csv",
                    HOURLY,
                    HOURLY,
                ),
            ),
            read_hourly,
            ("fmi",),
        ),
    ),
)
def fmi_hourly(arrays: Arrays, recipe: Recipe, length: int = 12, horizon: int = 3, neighbours: int = 5) -> Federation:
    """One client per station: `length` hours → the coming `horizon`, all windows that lie within one part of the time.

    Windows with a missing hour are left out, and so are stations without a window to train or test on; a note tells.
    """
    hours = np.asarray(arrays["temperature"])
    test = round(recipe.test_fraction * len(hours))
    validation = round(recipe.validation_fraction * len(hours))
    edges = (0, len(hours) - test - validation, len(hours) - test, len(hours))
    spans = dict(zip(PARTS, pairwise(edges)))
    size = length + horizon
    for part, (start, end) in spans.items():
        if min(length, horizon) < 1 or 0 < end - start < size:
            raise FedkinError(f"length {length} and horizon {horizon} do not fit the {end - start} hours of {part}")
    view = np.lib.stride_tricks.sliding_window_view(hours, size, axis=0).transpose(1, 0, 2)
    starts = view.shape[1]
    whole = ~np.isnan(view).any(axis=2)
    groups = clients_of(recipe, arrays["station"], "weather station")
    parts, dropped = {}, []
    for name, (k,) in groups.items():
        own = {
            part: np.flatnonzero(whole[k, start : max(start, end - size + 1)]) + start + k * starts
            for part, (start, end) in spans.items()
        }
        if len(own["train"]) and (len(own["test"]) or not test):
            parts[name] = own
        else:
            dropped.append(name)
    if not parts:
        raise FedkinError("no station has whole windows to train and test on; use a smaller length or horizon")
    windows = np.where(whole[..., None], view, 0.0).reshape(-1, size)
    places = np.array([arrays["latlon"][groups[name][0]] for name in parts])
    notes = [f"fmi-hourly: {', '.join(dropped)} left out, too few hours measured"] if dropped else []
    told = tuple(HOUR * step for step in range(1, horizon + 1))
    graph = nearest_stations(places, tuple(parts), neighbours)
    return series(recipe, parts, windows[:, :length], windows[:, length:], HOUR, told, places, graph, notes)
