"""Sites with raw tables: one scheme for all, agreed over the same bytes as on the network, from what sites consent to tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sites import LoopLine

import fedkin
from fedkin.deployment.check import check_sites
from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.raw_table import TOLD_COLUMNS, common, noisy_range
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.columns import InputColumn

NAMES = ("north", "south", "east")


def clinic(seed: int, rows: int = 80) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"visit": np.arange(rows), "age": rng.normal(60, 15, rows).round()})
    frame["lab"] = np.where(rng.random(rows) < 0.1, -999, rng.normal(4, 1, rows).round(2))
    frame["ward"] = rng.choice(["01", "02 ", f"own-{seed}", ""], rows)
    frame.loc[rng.random(rows) < 0.1, "age"] = np.nan
    frame["died"] = np.where(frame["age"].fillna(60) + 5 * rng.normal(size=rows) > 60, "yes", "no")
    frame["stay"] = (200 + 40 * rng.normal(size=rows)).round(1)
    return frame


def write_raw(folder: Path, policy: str = 'columns = "ranges"', target: str = "died", rows: int = 80) -> list[Path]:
    paths = []
    for seed, name in enumerate(NAMES):
        site = folder / name
        site.mkdir(parents=True, exist_ok=True)
        clinic(seed, rows).to_csv(site / "visits.csv", index=False)
        other = "stay" if target == "died" else "died"
        (site / "site.toml").write_text(
            f'disclose = true\n[[clients]]\nname = "{name}"\ndata = "visits.csv"\ntarget = "{target}"\n'
            f'drop = ["visit", "{other}"]\nmissing = [-999]\n[policy]\n{policy}\n'
        )
        paths.append(site / "site.toml")
    return paths


def plan(folder: Path, extra: str = "", model: str = "mlr") -> FederationFile:
    path = folder / "federation.toml"
    path.write_text(
        f'[federation]\nsites = 3\nwait = 0.1\nprepare = true\n{extra}\n[model]\nname = "{model}"\n'
        "[algorithm]\nname = 'fedavg'\nlr = 0.1\n[run]\nrounds = 2\ndtype = 'float64'\n"
    )
    return FederationFile.read(path)


def encoded_by_hand(result: fedkin.Result, frames: Sequence[pd.DataFrame]) -> Federation:
    columns = [InputColumn.described(entry) for entry in result.facts["inputs"]]
    clients = {}
    for name, frame in zip(NAMES, frames):
        raw = frame.replace(-999, np.nan)
        raw["ward"] = raw["ward"].str.strip().replace("", "(missing)")
        parts = []
        for column in columns:
            if column.categories is None:
                numbers = (raw[column.name].fillna(column.fill) - column.centre) / column.scale
                parts.append(numbers.to_numpy(dtype=np.float32)[:, None])
            else:
                parts += [(raw[column.name] == text).to_numpy(dtype=np.float32)[:, None] for text in column.categories]
        clients[name] = (np.concatenate(parts, axis=1), frame["died"].to_numpy())
    return Federation.from_arrays(clients)


def test_raw_tables_train_like_tables_encoded_by_hand(tmp_path: Path) -> None:
    result = train_sites(LoopLine(write_raw(tmp_path)), plan(tmp_path), tmp_path / "run")
    scheme = {column.name: column for column in map(InputColumn.described, result.facts["inputs"])}
    frames = [clinic(seed) for seed in range(3)]
    ends = np.median([[f["age"].min(), f["age"].max()] for f in frames], axis=0)
    assert scheme["age"].centre == pytest.approx(ends.mean())
    assert scheme["age"].scale == pytest.approx((ends[1] - ends[0]) / 4)
    assert abs(scheme["lab"].centre) < 10  # nobody's -999 is in it
    assert scheme["ward"].categories == ("(missing)", "01", "02", "own-0", "own-1", "own-2")
    federation = encoded_by_hand(result, frames).take([NAMES.index(name) for name in result.names])
    here = fedkin.train(federation, "mlr", fedkin.algorithms.FedAvg(lr=0.1), rounds=2, dtype="float64")
    assert np.allclose(result.rows, here.rows, atol=1e-9)
    fresh = clinic(7).drop(columns=["died", "stay"])
    said = fedkin.predict(fedkin.load(tmp_path / "run"), "north", fresh)
    assert set(said["prediction"]) <= {"yes", "no"}
    card = json.loads((tmp_path / "north" / "models" / "north.json").read_text())
    assert json.dumps(card["inputs"]) == json.dumps(result.facts["inputs"])


def test_a_run_that_goes_on_keeps_its_scheme(tmp_path: Path) -> None:
    paths = write_raw(tmp_path)
    whole = train_sites(LoopLine(paths), plan(tmp_path), tmp_path / "whole")
    first = plan(tmp_path)
    one = FederationFile(**{**vars(first), "options": first.options.model_copy(update={"rounds": 1})})
    train_sites(LoopLine(paths), one, tmp_path / "run")
    line = LoopLine(paths)
    again = train_sites(line, first, tmp_path / "run")
    assert json.dumps(again.facts["inputs"]) == json.dumps(whole.facts["inputs"])
    assert np.allclose(again.rows, whole.rows, atol=1e-12)


def test_numbers_as_targets_are_learned_standardised_and_told_in_their_units(tmp_path: Path) -> None:
    result = train_sites(LoopLine(write_raw(tmp_path, target="stay")), plan(tmp_path, model="linear"), tmp_path / "run")
    assert result.task.scale is not None
    assert 100 < result.task.scale.mean < 300
    said = fedkin.predict(result, "south", clinic(5))["prediction"]
    assert 100 < said.mean() < 300
    assert 20 < np.mean(result.metrics["deployed"]["test_rmse"]) < 200


FORMATS = ("%d.%m.%Y", "%Y-%m-%d", "%m/%d/%Y")


def write_dated(folder: Path, rows: int = 80) -> list[Path]:
    """Every site writes its dates, its numbers and its files in a way of its own."""
    paths = write_raw(folder, rows=rows)
    for seed, (name, format) in enumerate(zip(NAMES, FORMATS)):
        frame, own = clinic(seed, rows), folder / name
        days = np.random.default_rng(seed).integers(0, 700, rows)
        frame["admitted"] = (pd.Timestamp("2022-03-01") + pd.to_timedelta(days, unit="D")).strftime(format)
        frame.loc[3, "admitted"] = ""
        more = 'date = ["admitted"]\n'
        if name == "south":
            frame.to_csv(own / "visits.csv", index=False, sep=";", decimal=",", encoding="latin-1")
            more += 'sep = ";"\nencoding = "latin-1"\ndecimal = ","\n'
        else:
            frame.to_csv(own / "visits.csv", index=False)
        settings = (own / "site.toml").read_text()
        (own / "site.toml").write_text(settings.replace("missing = ", more + "missing = "))
    return paths


def test_dates_decimal_commas_and_separators_of_a_sites_own(tmp_path: Path) -> None:
    result = train_sites(LoopLine(write_dated(tmp_path)), plan(tmp_path), tmp_path / "run")
    columns = [InputColumn.described(entry) for entry in result.facts["inputs"]]
    dated = {column.part: column for column in columns if column.name == "admitted"}
    assert set(dated) == {"year", "month", "weekday", "days"}
    assert 2022 < dated["year"].centre < 2024.5
    first = (pd.Timestamp("2022-03-01") - pd.Timestamp(0)).days
    assert first < dated["days"].centre < first + 700
    assert next(column for column in columns if column.name == "lab").centre == pytest.approx(4, abs=2)
    one = pd.DataFrame({"age": [60], "lab": [4.0], "ward": ["01"], "admitted": ["2023-01-15"]})
    other = one.assign(admitted=["15.01.2023"])
    mine, theirs = (fedkin.predict(result, "north", frame)["probability"] for frame in (one, other))
    assert mine.tolist() == theirs.tolist()


def test_a_date_that_one_site_forgot_to_name_is_told(tmp_path: Path) -> None:
    paths = write_dated(tmp_path)
    text = (tmp_path / "east" / "site.toml").read_text()
    (tmp_path / "east" / "site.toml").write_text(text.replace('date = ["admitted"]\n', ""))
    with pytest.raises(FedkinError, match="'east': column 'admitted' holds texts, but dates at most clients"):
        train_sites(LoopLine(paths), plan(tmp_path), tmp_path / "run")


def test_nothing_is_told_without_consent(tmp_path: Path) -> None:
    line = LoopLine(write_raw(tmp_path, policy="shared = true"))
    with pytest.raises(FedkinError, match="policy does not let ranges and texts of columns leave"):
        train_sites(line, plan(tmp_path), tmp_path / "run")
    assert all("table" not in json.dumps(dict(answer.head)) for answer in line.answers)


def test_a_column_of_another_kind_is_named(tmp_path: Path) -> None:
    paths = write_raw(tmp_path)
    frame = clinic(2)
    frame["lab"] = "high"
    frame.to_csv(tmp_path / "east" / "visits.csv", index=False)
    with pytest.raises(FedkinError, match="'east': column 'lab' holds texts, but numbers at most clients"):
        train_sites(LoopLine(paths), plan(tmp_path), tmp_path / "run")


def test_deploy_check_looks_at_raw_tables(tmp_path: Path) -> None:
    paths = write_raw(tmp_path)
    settings = plan(tmp_path).federation
    assert check_sites(LoopLine(paths), settings, 0.1).faults == []
    clinic(1).drop(columns="ward").to_csv(tmp_path / "south" / "visits.csv", index=False)
    frame = clinic(2)
    frame["note"] = [f"text {k} of many" for k in range(len(frame))]
    pd.concat([frame] * 2).assign(note=lambda f: [f"note {k}" for k in range(len(f))]).to_csv(
        tmp_path / "east" / "visits.csv", index=False
    )
    faults = " ".join(check_sites(LoopLine(paths), settings, 0.1).faults)
    assert "'south': lacks columns that most have: 'ward'" in faults
    assert "column 'note' holds 160 different texts" in faults


# --- with noise -------------------------------------------------------------------------------------------------------


def test_with_noise_rare_texts_stay_home_and_the_budget_is_spent_once(tmp_path: Path) -> None:
    policy = 'columns = "noisy"\nepsilon = 60.0\ndelta = 1e-4'
    paths = write_raw(tmp_path, policy, rows=900)
    frame = clinic(0, 900)
    frame.loc[0, "ward"] = "the only one"
    frame.to_csv(tmp_path / "north" / "visits.csv", index=False)
    result = train_sites(LoopLine(paths), plan(tmp_path), tmp_path / "run")
    scheme = {column.name: column for column in map(InputColumn.described, result.facts["inputs"])}
    assert "the only one" not in (scheme["ward"].categories or ())
    assert {"01", "02", "own-0"} <= set(scheme["ward"].categories or ())
    assert 30 < scheme["age"].centre < 100  # powers of two around 60
    told = json.loads((tmp_path / "north" / "state" / TOLD_COLUMNS).read_text())
    spent = (tmp_path / "north" / "spent.json").read_text()
    assert json.loads(spent) == {"north": [30.0, 5e-5]}
    again = train_sites(LoopLine(paths), plan(tmp_path), tmp_path / "again")
    assert again.facts["inputs"] == result.facts["inputs"]
    assert (tmp_path / "north" / "spent.json").read_text() == spent
    assert json.loads((tmp_path / "north" / "state" / TOLD_COLUMNS).read_text()) == told


def test_the_noise_is_that_of_its_account() -> None:
    """A value that one row has is told with probability at most δ/4; one that exactly the threshold has, half of the time."""
    epsilon, delta = 1.0, 0.2
    many = common(epsilon, delta)
    alone = sum("x" in many(["x"]) for _ in range(4000)) / 4000
    assert alone == pytest.approx(delta / 4, abs=0.015)
    least = 1 + 2 * np.log(2 / delta) / epsilon
    count = int(np.ceil(least))
    told = sum("x" in many(["x"] * count) for _ in range(4000)) / 4000
    assert told == pytest.approx(1 - 0.5 * np.exp(-(count - least) * epsilon / 2), abs=0.035)


def test_a_noisy_range_covers_what_many_have() -> None:
    numbers = np.concatenate([np.full(500, 60.0), np.full(500, -3.0), [1e9, np.nan]])
    assert noisy_range(numbers, common(5.0, 1e-6)) == (-4.0, 64.0)
    assert noisy_range(np.array([np.nan]), common(5.0, 1e-6)) is None
