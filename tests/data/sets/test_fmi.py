from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedkin
from fedkin.data.federate import Recipe
from fedkin.data.sets import fmi
from fedkin.errors import FedkinError
from fedkin.local.forecasts import persistence

STATIONS = {"Ähtäri": (62.5, 24.1), "Oulu, satama": (65.0, 25.4), "Hanko": (59.8, 22.9), "Turku": (60.5, 22.3)}
SPLIT = Recipe(test_fraction=0.3)


def made_daily(path: Path, windows: int = 10) -> None:
    """A table of the same form; the high of day d is d, the low −d, so that a day shows which it is."""
    lines = ["Name,Latitude,Longitude,Tmax,Tmin,y_Tmax,y_Tmin"]
    for name, (latitude, longitude) in STATIONS.items():
        for window in range(windows):
            days = [float(6 * window + d + 1) for d in range(6)]
            highs, lows = str(days[:5]), str([-d for d in days[:5]])
            lines.append(f'"{name}",{latitude},{longitude},"{highs}","{lows}",{days[5]},{-days[5]}')
    path.write_text("\r\n".join(lines) + "\r\n", encoding="utf-8")


def made_hourly(path: Path, hours: int = 96, gap: int | None = None) -> None:
    """A table of the same form, lines in no order; the temperature of hour h is h at every station."""
    rng = np.random.default_rng(0)
    lines = []
    for name, (latitude, longitude) in STATIONS.items():
        for hour in range(hours):
            if not (name == "Hanko" and hour == gap):
                when = np.datetime64("2023-12-28T11:00:00") + np.timedelta64(hour, "h")
                lines.append(f'{latitude},{longitude},{str(when).replace("T", " ")},{float(hour)},"{name}"')
    lines = [lines[k] for k in rng.permutation(len(lines))]
    path.write_text("\n".join(["Latitude,Longitude,Timestamp,temp,name", *lines]) + "\n", encoding="utf-8")


def days(federation: fedkin.Federation, part: str) -> np.ndarray:
    """The highs and targets of a part in degrees, (samples, 6)."""
    split = getattr(federation, part)
    values = np.concatenate([split.x[:, 5:], split.y], axis=1) * federation.truth["std"] + federation.truth["mean"]
    return values.round().astype(int)


def test_no_day_of_a_test_is_trained_on_at_any_station(tmp_path: Path) -> None:
    made_daily(tmp_path / "daily.csv")
    federation = fmi.fmi(fmi.read_daily({"a": tmp_path / "daily.csv"}), SPLIT, neighbours=2)
    assert set(federation.names) == set(STATIONS)
    assert federation.train.sizes.tolist() == [7] * 4
    assert federation.test.sizes.tolist() == [3] * 4
    assert not set(days(federation, "train").ravel()) & set(days(federation, "test").ravel())
    assert (np.diff(days(federation, "test"), axis=1) == 1).all()  # five highs in order, then the sixth
    assert persistence(federation)["mae_1440"].to_numpy() == pytest.approx(np.ones(4), abs=1e-4)


def test_the_graph_joins_the_nearest_stations_at_their_places(tmp_path: Path) -> None:
    made_daily(tmp_path / "daily.csv")
    federation = fmi.fmi(fmi.read_daily({"a": tmp_path / "daily.csv"}), SPLIT, neighbours=1)
    places = dict(zip(federation.names, federation.truth["coordinates"].tolist()))
    assert places == {name: list(place) for name, place in STATIONS.items()}
    assert set(federation.graph.neighbours("Hanko")) == {"Turku"}
    few = fmi.fmi(fmi.read_daily({"a": tmp_path / "daily.csv"}), replace(SPLIT, clients=1))
    assert len(few) == 1
    assert few.graph.names == few.names


def test_the_seed_draws_the_windows(tmp_path: Path) -> None:
    made_daily(tmp_path / "daily.csv")
    arrays = fmi.read_daily({"a": tmp_path / "daily.csv"})
    prints = [fmi.fmi(arrays, replace(SPLIT, seed=seed)).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_no_hourly_window_crosses_the_cut(tmp_path: Path) -> None:
    made_hourly(tmp_path / "hourly.csv")
    federation = fmi.fmi_hourly(fmi.read_hourly({"a": tmp_path / "hourly.csv"}), Recipe(validation_fraction=0.25))
    mean, std = federation.truth["mean"], federation.truth["std"]
    for part, first, last in (("train", 0, 47), ("validation", 48, 71), ("test", 72, 95)):
        split = getattr(federation, part)
        hours = np.concatenate([split.x, split.y], axis=1) * std + mean
        assert (round(float(hours.min())), round(float(hours.max()))) == (first, last)
        assert np.allclose(np.diff(hours, axis=1), 1, atol=1e-4)
    assert federation.test.sizes.tolist() == [24 - 15 + 1] * 4
    assert persistence(federation)["mae_180"].to_numpy() == pytest.approx(np.full(4, 3), abs=1e-3)


def test_windows_with_a_missing_hour_are_left_out_and_stations_without_any(tmp_path: Path) -> None:
    made_hourly(tmp_path / "hourly.csv", gap=20)
    arrays = fmi.read_hourly({"a": tmp_path / "hourly.csv"})
    federation = fmi.fmi_hourly(arrays, Recipe())
    sizes = dict(zip(federation.names, federation.train.sizes.tolist()))
    assert sizes["Turku"] - sizes["Hanko"] == 15
    hours = arrays["temperature"].copy()
    hours[[80, 90], list(arrays["station"]).index("Hanko")] = np.nan
    without = fmi.fmi_hourly(arrays | {"temperature": hours}, Recipe())
    assert "Hanko" not in without.names
    assert without.notes == ("fmi-hourly: Hanko left out, too few hours measured",)
    assert without.graph.names == without.names


def test_wrong_files_and_options_are_refused(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "FMI_data_2025.csv"
    made_daily(path)
    with pytest.raises(FedkinError, match="checksum mismatch"):
        fedkin.data.load("fmi", directory=tmp_path)
    arrays = fmi.read_daily({"a": path})
    with pytest.raises(FedkinError, match="a client of this set is a weather station"):
        fmi.fmi(arrays, replace(SPLIT, partition="iid"))
    with pytest.raises(FedkinError, match="neighbours is 0"):
        fmi.fmi(arrays, SPLIT, neighbours=0)
    path.write_text(path.read_text().replace("[1.0, 2.0", "[1.0, two"))
    with pytest.raises(FedkinError, match="line 2, Tmax is no list of five"):
        fmi.read_daily({"a": path})
    made_hourly(tmp_path / "hourly.csv")
    with pytest.raises(FedkinError, match="do not fit the 24 hours of test"):
        fmi.fmi_hourly(fmi.read_hourly({"a": tmp_path / "hourly.csv"}), Recipe(), length=24)
    with pytest.raises(FedkinError, match="expected"):
        fmi.read_hourly({"a": path})


@pytest.mark.real_data
def test_the_real_daily_file(real_data: Path) -> None:
    federation = fedkin.data.load("fmi")
    assert len(federation) == 192
    assert set(federation.train.sizes) == {7}
    assert federation.graph.is_connected
    assert federation.truth["coordinates"].min(axis=0) == pytest.approx([59.5, 19.5], abs=1)
    assert persistence(federation)["mae_1440"].mean() < 3
    assert fedkin.data.load("fmi").fingerprint() == federation.fingerprint()


@pytest.mark.real_data
def test_windows_of_the_real_file_share_no_days_and_are_the_same_days_everywhere(real_data: Path) -> None:
    arrays = fmi.read_daily({"a": real_data / "fmi/FMI_data_2025.csv.gz"})
    highs = np.concatenate([arrays["past"][:, 5:], arrays["coming"]], axis=1).reshape(192, 10, 6)
    for a, b in ((a, b) for a in range(10) for b in range(10) if a != b):
        for lag in range(6):  # a shared day would be equal at all stations, chance makes it so at a few
            assert (highs[:, a, lag:] == highs[:, b, : 6 - lag]).mean() < 0.2
    places = arrays["latlon"].reshape(192, 10, 2)[:, 0]
    apart = np.linalg.norm((places[:, None] - places) * [111, 52], axis=2)
    together = np.corrcoef(highs.reshape(192, 60))[(apart > 0) & (apart < 50)]
    assert together.mean() > 0.9


@pytest.mark.real_data
def test_the_real_hourly_file(real_data: Path) -> None:
    federation = fedkin.data.load("fmi-hourly")
    assert len(federation) == 205
    assert federation.test.sizes.max() == 10
    assert "Sipoo Itätoukki" in federation.notes[0]
    assert persistence(federation)["mae_60"].mean() < 1
    assert fedkin.data.load("fmi-hourly").fingerprint() == federation.fingerprint()
