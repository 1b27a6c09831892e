"""From a messy table to predictions, as a new user would go: hypothesis draws the mess, nobody tunes to it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedkin
from fedkin import Federation
from fedkin.cli import app
from fedkin.errors import FedkinError
from fedkin.notebook import ROWS_SHOWN
from fedkin.result.predict import inputs_of, predict

SITES, ROWS, POSITIVES = 12, 960, 0.039


def hospitals(seed: int = 0) -> pd.DataFrame:
    """12 sites of uneven size, 3.9 % positives, and what tables are like: codes, dates, gaps, a sentinel, an id."""
    rng = np.random.default_rng(seed)
    site = rng.choice(SITES, ROWS, p=np.arange(1, SITES + 1) / np.arange(1, SITES + 1).sum())
    site[: 5 * SITES] = np.repeat(np.arange(SITES), 5)
    frame = pd.DataFrame({"hospital ": [f"{k + 1:02d}" for k in site], "visit": [f"V-{k:05d}" for k in range(ROWS)]})
    frame["admitted"] = (pd.Timestamp("2022-03-01") + pd.to_timedelta(rng.integers(0, 700, ROWS), unit="D")).strftime(
        "%d.%m.%Y"
    )
    frame["age"] = rng.normal(60, 15, ROWS).round()
    frame["lab"] = rng.normal(4, 1, ROWS).round(2)
    frame["ward"] = rng.choice(["01", "02", "ICU ", "icu"], ROWS)
    frame["weight"] = [f"{kg:.1f}".replace(".", ",") for kg in rng.normal(75, 12, ROWS)]
    frame.loc[rng.random(ROWS) < 0.05, "weight"] = "\u00a0"
    risk = frame["age"] / 15 + 2 * frame["ward"].isin(["ICU ", "icu"]) + rng.normal(size=ROWS)
    frame["died"] = (risk >= np.quantile(risk, 1 - POSITIVES)).astype(float)
    frame.loc[rng.random(ROWS) < 0.1, "lab"] = -999
    frame.loc[rng.random(ROWS) < 0.05, "age"] = np.nan
    return frame


def says(*words: object) -> str:
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.output


def test_the_walk_from_file_to_predictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = hospitals()
    frame.to_csv("visits.csv", index=False, sep=";")
    table = ("--csv", "visits.csv", "--client", "hospital", "--target", "died")
    refused = CliRunner().invoke(app, ["run", *table, "--sep", ";", "--rounds", "1"])
    assert refused.exit_code == 2
    assert "--id visit" in refused.output
    assert "--date admitted" in refused.output
    assert "decimal comma: --decimal ," in refused.output
    told = ("--sep", ";", "--id", "visit", "--date", "admitted", "--missing", "-999", "--decimal", ",")
    said = says("run", *table, *told, "--model", "mlr", "--rounds", "3", "--out", "runs/a", "--json", "r.json")
    record = json.loads(Path("r.json").read_text())
    assert record["names"] == [f"{k:02d}" for k in range(1, 13)]
    notes = " ".join(record["notes"])
    for words in (
        "treated as classes",
        "of training rows are 1",
        "judge by AUROC",
        "one class only",
        "missing values",
        "differ in case only",
    ):
        assert words in notes
        assert words in " ".join(said.split())
    assert "-999" not in notes
    listed = says("runs")
    assert "runs/a" in listed
    assert "visits.csv" in listed
    found = says("predict", "runs/a", "visits.csv", "--client-column", "hospital")
    lines = found.strip().splitlines()
    assert lines[0] == "visit,hospital,prediction,probability,probability_0,probability_1"
    assert len(lines) == ROWS + 1
    assert lines[1].startswith("V-00000,01,")


def test_a_thirteenth_site_joins_with_its_own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = hospitals()
    late = frame["hospital "].isin(["11", "12"])
    frame[~late].to_csv("visits.csv", index=False, sep=";")
    frame[late].to_csv("new.csv", index=False, sep=";")
    told = ("--sep", ";", "--id", "visit", "--date", "admitted", "--missing", "-999", "--decimal", ",")
    table = ("--csv", "visits.csv", "--client", "hospital", "--target", "died")
    says("auto", *table, *told, "--model", "mlr", "--effort", "quick", "--rounds", "3", "--out", "runs/a")
    assert "11" in says("join", "runs/a", "--csv", "new.csv", "--out", "runs/b")
    found = says("predict", "runs/b", "new.csv", "--client-column", "hospital")
    lines = found.strip().splitlines()
    assert lines[0] == "visit,hospital,prediction,probability,probability_0,probability_1"
    assert len(lines) == int(late.sum()) + 1
    page = Path(says("report", "runs/a", "--out", "page.html").split()[-1]).read_text()
    assert "visits.csv · target died" in page


def test_the_sentinel_is_noticed_where_nobody_told() -> None:
    federation = Federation.from_frame(hospitals(), "hospital", "died", id="visit", date="admitted", drop="weight")
    assert any("'lab': -999 occurs" in note and "--missing -999" in note for note in federation.notes)


CELLS = st.one_of(
    st.floats(-1e3, 1e3, allow_nan=False).map(lambda v: f"{v:.1f}".replace(".", ",")),
    st.integers(-1000, 1000).map(str),
    st.floats(-1e6, 1e6, allow_nan=False).map(lambda v: f"{v:.3f}"),
    st.sampled_from(
        [
            "",
            " ",
            "n/a",
            "-999",
            "unknown",
            "01",
            " yes",
            "yes ",
            "No",
            "2024-02-30",
            "2024-02-28",
            "1,5",
            "∞",
            "é",
            "NO",
            "\u00a0",
            "12\u00a0",
        ]
    ),
    st.text("ab 'é\t", max_size=4),
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_mess_gives_a_federation_or_one_line(data: st.DataObject, tmp_path: Path) -> None:
    """Whatever the cells are: finite inputs, the same from frame and file, predictable again; or one line that refuses."""
    n = data.draw(st.integers(12, 40))
    names = data.draw(
        st.lists(st.sampled_from(["age", " lab", "ward ", "day", "Ä b"]), min_size=1, max_size=3, unique=True)
    )
    frame = pd.DataFrame({name: data.draw(st.lists(CELLS, min_size=n, max_size=n)) for name in names})
    frame.insert(0, "site", data.draw(st.lists(st.sampled_from(["01", "1", "b "]), min_size=n, max_size=n)))
    frame["y"] = [k % 2 for k in range(n)]
    path = tmp_path / "mess.csv"
    frame.to_csv(path, index=False)
    options = {
        "missing_values": ["-999", "n/a"],
        "date": ["day"] if "day" in names else [],
        "decimal": data.draw(st.sampled_from([".", ","])),
    }
    try:
        federation = fedkin.data.from_csv(path, "site", "y", **options)
    except FedkinError as problem:
        refused = str(problem)
        federation = None
    if federation is None:
        assert "\n" not in refused
        return
    assert np.isfinite(federation.train.x).all()
    assert all("\n" not in note for note in federation.notes)
    assert all(name == name.strip() for name in federation.names)
    assert fedkin.data.load(**federation.source).fingerprint() == federation.fingerprint()
    result = fedkin.train(federation, "mlr", "fedavg", rounds=1)
    again = inputs_of(result, fedkin.data.tabular.read_table(path))
    prepared = np.concatenate([federation.train.x, federation.test.x])
    assert sorted(map(tuple, again)) == sorted(map(tuple, prepared)), "new rows are prepared as those of training"
    told = predict(result, federation.names[0], fedkin.data.tabular.read_table(path))
    assert len(told) == n
    assert np.isfinite(told["probability"]).all()


def test_things_show_themselves_in_notebooks_and_in_80_columns() -> None:
    frame = hospitals().replace({"ward": {"ICU ": "<b>ICU</b>"}})
    frame["hospital "] = "<i>" + frame["hospital "]
    federation = Federation.from_frame(frame, "hospital", "died", keep=["age", "ward"])
    result = fedkin.train(federation, "mlr", "fedavg", rounds=2, graph="complete")
    comparison = fedkin.compare(federation, "mlr", ["fedavg"], rounds=1)
    graph = fedkin.ClientGraph(np.ones((40, 40)) - np.eye(40))
    for thing in (federation, result, result.history, comparison, graph):
        page = thing._repr_html_()
        assert page.startswith("<b>")
        assert "<i>" not in page, "texts are escaped"
        assert page.count("<tr>") <= ROWS_SHOWN + 1
    assert "&lt;i&gt;01" in federation._repr_html_()
    assert "… and 20 more" in graph._repr_html_()
    assert max(map(len, str(result.table()).splitlines())) <= 80


def test_runs_are_listed_with_how_to_go_on(tmp_path: Path) -> None:
    federation = fedkin.data.load("digits", clients=3)
    fedkin.train(federation, "mlr", rounds=2, out=tmp_path / "whole")
    fedkin.train(federation, "mlr", rounds=2, out=tmp_path / "half")
    (tmp_path / "half" / "result.safetensors").unlink()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.toml").write_text("no toml")
    said = says("runs", tmp_path, "--json", tmp_path / "runs.json")
    entries = {Path(e["run"]).name: e for e in json.loads((tmp_path / "runs.json").read_text())["runs"]}
    assert entries["whole"]["finished"]
    assert entries["whole"]["rounds"] == "2/2"
    assert entries["whole"]["metric"].startswith("accuracy 0.")
    assert not entries["half"]["finished"]
    assert f"fedkin resume {tmp_path / 'half'}" in said
    assert "cannot be read" in said
