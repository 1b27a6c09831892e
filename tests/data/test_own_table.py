"""One way in for raw tables: what is read, what is refused (all at once), what is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin import Federation
from fedkin.errors import FedkinError
from fedkin.result.predict import predict


def visits(n: int = 240, positives: float = 0.5) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({" site ": [f" s{k % 4:02d} " for k in range(n)], "age": rng.normal(50, 9, n)})
    frame["ward"] = rng.choice(["01", "02", " 02 "], n)
    frame["seen"] = pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d")
    frame["visit"] = [f"v{k}" for k in range(n)]
    frame["ill"] = (rng.random(n) < positives).astype(float)
    return frame


def test_a_raw_frame_is_taken_with_names_and_categories_trimmed() -> None:
    federation = Federation.from_frame(visits(), client="site", target="ill", id="visit", date=["seen"])
    assert federation.names == ("s00", "s01", "s02", "s03")
    assert federation.task.classes == (0, 1)
    assert [(c["name"], c["part"]) for c in federation.inputs] == [
        ("age", None), ("ward", None), *(("seen", part) for part in ("year", "month", "weekday", "days")),
    ]  # fmt: skip
    assert federation.inputs[1]["categories"] == ("01", "02")
    assert any("'ill' holds only 0 and 1: treated as classes" in note for note in federation.notes)


def test_dates_are_year_month_weekday_and_days_since_the_first() -> None:
    federation = Federation.from_frame(
        visits(), client="site", target="ill", keep="seen", date="seen", standardise=False, test_fraction=0.0
    )
    day = pd.Timestamp("2024-01-01") + pd.Timedelta(days=5)  # row 5 is the second of client s01
    assert federation.train[1][0][1].tolist() == [day.year, day.month, day.weekday(), 5]


@pytest.mark.parametrize("suffix", ["csv", "xlsx", "parquet"])
def test_files_of_every_kind_give_the_same_as_the_frame(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"visits.{suffix}"
    if suffix == "csv":
        visits().to_csv(path, index=False, sep=";", encoding="utf-16")
    elif suffix == "xlsx":
        pytest.importorskip("openpyxl")
        visits().to_excel(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        visits().to_parquet(path)
    options = {"client": "site", "target": "ill", "drop": ["visit"], "date": ["seen"]}
    reading = {"sep": ";", "encoding": "utf-16"} if suffix == "csv" else {}
    federation = fedkin.data.from_csv(path, **options, **reading)
    direct = Federation.from_frame(visits(), **options)
    assert np.allclose(federation.train.x, direct.train.x, atol=1e-6)
    assert federation.inputs[1]["categories"] == ("01", "02")
    assert fedkin.data.load(**federation.source).fingerprint() == federation.fingerprint()


def test_a_polars_frame_is_taken() -> None:
    polars = pytest.importorskip("polars")
    options = {"client": "site", "target": "ill", "drop": ["visit"], "date": ["seen"]}
    theirs = Federation.from_frame(polars.from_pandas(visits()), **options)
    assert theirs.fingerprint() == Federation.from_frame(visits(), **options).fingerprint()
    with pytest.raises(FedkinError, match="give a pandas or polars data frame"):
        Federation.from_frame([[1, 2]], "a", "b")


def test_all_bad_columns_are_named_at_once_with_a_suggestion_each() -> None:
    frame = visits()
    frame["when"] = pd.Timestamp("2024-01-01")
    frame["dose"] = [f"{k}" if k % 9 else "unknown" for k in range(len(frame))]
    frame["rate"] = np.inf
    frame["weight"] = [f"{k},5" for k in range(len(frame))]
    with pytest.raises(FedkinError) as problem:
        Federation.from_frame(frame, client="site", target="ill")
    said = str(problem.value)
    assert "\n" not in said
    for words in (
        "--date seen", "--id visit or --drop visit", "'when' holds dates", "--missing unknown", "infinite", "decimal comma"
    ):  # fmt: skip
        assert words in said
    mended = Federation.from_frame(
        frame, "site", "ill", missing_values=["unknown", "inf"], date=["seen", "when"], drop=["visit", "weight", "rate"]
    )
    assert any("'dose': 27 missing values, replaced by the training median" in note for note in mended.notes)
    with pytest.raises(FedkinError, match=r"2 faults: unknown client column 'sit'.*unknown column 'agee'"):
        Federation.from_frame(frame, client="sit", target="ill", drop=["agee"])


def test_blanks_in_names_are_shown() -> None:
    with pytest.raises(FedkinError, match=r"choose one of: a, 'b\\xa0c'"):
        Federation.from_frame(pd.DataFrame({"a": [1], "b\xa0c": [2]}), client="zzzz", target="a")


def test_a_wrong_separator_is_recognised(tmp_path: Path) -> None:
    visits().to_csv(tmp_path / "v.csv", index=False, sep=";")
    with pytest.raises(FedkinError, match="name its separator: --sep"):
        fedkin.data.from_csv(tmp_path / "v.csv", "site", "ill")


def test_what_a_reader_should_know_is_noted() -> None:
    frame = visits(1000, positives=0.05).drop(columns=["seen", "visit"])
    frame.loc[frame[" site "] == " s02 ", "ill"] = 0.0
    frame["lab"] = np.where(np.arange(1000) % 50 == 0, -999, np.random.default_rng(2).normal(4, 1, 1000))
    frame["unit"], frame["number"] = "mg", np.arange(1000)
    notes = Federation.from_frame(frame, client="site", target="ill").notes
    for words in (
        "'lab': -999 occurs", "--missing -999", "'unit' is constant", "'number' differs in every training row",
        "% of training rows are 1", "judge by AUROC", "one client has training rows of one class only: 's02'",
    ):  # fmt: skip
        assert any(words in note for note in notes), words
    assert not any("\n" in note for note in notes)
    clean = Federation.from_frame(frame, "site", "ill", drop=["unit", "number"], missing_values=[-999])
    assert not any("-999" in note for note in clean.notes)
    assert clean.inputs[2]["scale"] < 1.5
    three = Federation.from_frame(frame.assign(ill=np.arange(1000) % 3), "site", "ill", keep=["age"])
    assert any("3 different whole numbers: treated as classes" in note for note in three.notes)


def test_regression_is_told_in_the_targets_units() -> None:
    """A price in the ten thousands: trained on z-scores, judged and predicted in its own units."""
    rng, n = np.random.default_rng(0), 400
    frame = pd.DataFrame({"site": rng.choice(["a", "b"], n), "size": rng.normal(size=n)})
    frame["price"] = 90_000 + 20_000 * frame["size"] + rng.normal(scale=500, size=n)
    federation = Federation.from_frame(frame, client="site", target="price")
    assert abs(federation.train.y.mean()) < 1e-5
    assert federation.train.y.std() == pytest.approx(1, abs=1e-5)
    result = fedkin.train(federation, "linear", "fedavg", rounds=30)
    deployed = result.metrics["deployed"]
    assert 300 < np.mean(deployed["test_rmse"]) < 1500
    assert np.allclose(np.square(deployed["test_rmse"]), deployed["test_mse"], rtol=1e-6)
    assert np.mean(deployed["test_mae"]) < np.mean(deployed["test_rmse"])
    assert min(deployed["test_r2"]) > 0.98
    found = predict(result, "a", frame)["prediction"]
    assert np.sqrt(np.mean((found - frame["price"]) ** 2)) < 1500
    with pytest.raises(FedkinError, match="task='counts'"):
        fedkin.train(federation, "linear", "fedavg", rounds=1, loss="poisson")


def test_predictions_know_every_class_every_site_and_the_id(tmp_path: Path) -> None:
    frame = visits().assign(ill=lambda t: np.where(t["age"] > 50, "yes", "no"))
    frame.to_csv(tmp_path / "visits.csv", index=False)
    federation = fedkin.data.from_csv(tmp_path / "visits.csv", "site", "ill", id="visit", date=["seen"])
    result = fedkin.train(federation, "mlr", "local", rounds=3, out=tmp_path / "run")
    found = predict(result, None, frame, client_column="site", id="visit")
    assert found.columns.tolist() == ["visit", "site", "prediction", "probability", "probability_no", "probability_yes"]
    assert found["visit"].tolist() == frame["visit"].tolist()
    assert np.allclose(found["probability_no"] + found["probability_yes"], 1)
    one = predict(result, "s02", frame)
    mine = frame[" site "] == " s02 "
    assert np.array_equal(one.loc[mine, "probability_yes"], found.loc[mine, "probability_yes"])
    assert not np.allclose(one["probability_yes"], found["probability_yes"]), "each site has a model of its own"
    with pytest.raises(FedkinError, match="unknown client 's09'"):
        predict(result, None, frame.assign(**{" site ": "s09"}), client_column="site")
    with pytest.raises(FedkinError, match="whose model"):
        predict(result, None, frame)
    from fedkin.result.predict import predict_file

    again = predict_file(tmp_path / "run", None, tmp_path / "visits.csv", client_column="site")
    assert np.allclose(again["probability_yes"], found["probability_yes"])
    assert again["visit"].tolist() == frame["visit"].tolist(), "the run's id column is kept"


def prices(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": rng.choice(["a", "b", "c"], n), "size": rng.normal(size=n)})
    return frame.assign(price=90_000 + 20_000 * frame["size"] + rng.normal(scale=500, size=n))


def test_exported_programs_and_cards_know_the_units(tmp_path: Path) -> None:
    import json

    import torch

    result = fedkin.train(Federation.from_frame(prices(), "site", "price"), "linear", "fedavg", rounds=20)
    out = result.export(tmp_path, "torch")
    scale = json.loads((out / "a.json").read_text())["scale"]
    assert scale["mean"] == pytest.approx(90_000, rel=0.1)
    program = torch.export.load(out / "a.pt2").module()
    inputs = torch.tensor([[0.0], [1.0]])
    assert torch.allclose(program(inputs).detach(), result.models["a"](inputs) * scale["std"] + scale["mean"])


def test_newcomers_are_scaled_as_the_run_was(tmp_path: Path) -> None:
    from fedkin.portfolio.newcomers import read_newcomers

    prices().to_csv(tmp_path / "old.csv", index=False)
    federation = fedkin.data.from_csv(tmp_path / "old.csv", "site", "price", drop=(), missing_values=-999)
    assert federation.source["missing_values"] == [-999]
    fedkin.train(federation, "linear", "fedavg", rounds=2, out=tmp_path / "run")
    new = prices(40).assign(site="d", price=lambda t: t["price"] + 10_000)
    new.to_csv(tmp_path / "new.csv", index=False)
    joined = read_newcomers(fedkin.load(tmp_path / "run"), tmp_path / "new.csv")
    assert joined.task.scale == federation.task.scale
    told = np.concatenate([joined.train.y, joined.test.y]) * joined.task.scale.std + joined.task.scale.mean
    assert np.allclose(sorted(told), sorted(new["price"]), rtol=1e-5)


def test_newcomers_whose_classes_are_written_as_floats(tmp_path: Path) -> None:
    from fedkin.portfolio.newcomers import read_newcomers

    frame = prices().assign(dear=lambda t: (t["price"] > 90_000).astype(float)).drop(columns="price")
    frame.to_csv(tmp_path / "old.csv", index=False)
    federation = fedkin.data.from_csv(tmp_path / "old.csv", "site", "dear")
    result = fedkin.train(federation, "mlr", "fedavg", rounds=1, out=tmp_path / "run")
    frame.head(40).assign(site="d").to_csv(tmp_path / "new.csv", index=False)
    joined = read_newcomers(result, tmp_path / "new.csv")
    assert joined.task.classes == federation.task.classes
    expected = [int((frame.head(40)["dear"] == label).sum()) for label in (0, 1)]
    assert (joined.label_counts("train") + joined.label_counts("test")).sum(axis=0).tolist() == expected


def test_columns_that_older_runs_kept_are_read() -> None:
    from fedkin.federation.columns import InputColumn

    old = InputColumn.described({"name": "age", "centre": 1.0, "scale": 2.0, "fill": 3.0, "categories": None})
    assert old.encode(pd.Series([5.0, np.nan]))[:, 0].tolist() == [2.0, 1.0]
    assert InputColumn.described({"name": "c", "categories": ["x", "y"]}).encode(pd.Series([" y"])).tolist() == [[0, 1]]


# --- numbers that are written as text ---------------------------------------------------------------------------------


def written(cells: list[str]) -> pd.DataFrame:
    rows = len(cells)
    return pd.DataFrame({"site": ["a", "b"] * (rows // 2), "v": cells, "y": [0, 1, 1, 0] * (rows // 4)})


def test_blank_cells_do_not_make_categories_of_numbers() -> None:
    cells = [f" {k}.5" if k % 7 else "\u00a0" for k in range(40)]
    federation = Federation.from_frame(written(cells), "site", "y")
    assert federation.task.input_shape == (1,)
    assert any("'v': 6 missing values, replaced by the training median" in note for note in federation.notes)
    codes = Federation.from_frame(written([str(k % 3) for k in range(40)]), "site", "y")
    assert codes.task.input_shape == (3,), "digits that are text from end to end are codes"


def test_decimal_commas_are_read_where_they_are_told_and_noticed_where_not() -> None:
    cells = [f"{k},5" for k in range(40)]
    told = Federation.from_frame(written(cells), "site", "y", decimal=",")
    pointed = Federation.from_frame(written([cell.replace(",", ".") + " " for cell in cells]), "site", "y")
    assert np.array_equal(told.train.x, pointed.train.x)
    quiet = Federation.from_frame(written(cells), "site", "y")
    assert any("have a decimal comma and are taken for" in note and "--decimal ," in note for note in quiet.notes)
    result = fedkin.train(told, "mlr", rounds=1)
    new = fedkin.predict(result, "a", pd.DataFrame({"v": ["3,5", " 3,5"]}))
    assert new["probability"].nunique() == 1
    with pytest.raises(FedkinError, match="decimal is 'comma'; it must be one mark"):
        Federation.from_frame(written(cells), "site", "y", decimal="comma")


def test_a_word_among_numbers_and_letters_of_another_case_are_noticed() -> None:
    numbers = Federation.from_frame(written([str(k) if k else "unknown" for k in range(40)]), "site", "y")
    assert any(
        "'v' holds numbers but for 'unknown'" in note and "--missing 'unknown'" in note for note in numbers.notes
    )
    case = Federation.from_frame(written(["m", "M", "w", "w"] * 10), "site", "y")
    assert any("'M', 'm' differ in case only" in note for note in case.notes)
    frame = written(["1", "2"] * 20)
    frame["y"] = ["no", "yes", "No", "yes"] * 10
    assert any(
        "target 'y': 'No', 'no' differ in case only" in n for n in Federation.from_frame(frame, "site", "y").notes
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"y": 1.0}, "target column 'y' holds '1.0' in every row; there is nothing to predict"),
        ({"v": pd.to_timedelta(range(40), unit="s")}, "column 'v' holds durations"),
        ({"v": [[1]] * 40}, "column 'v' holds lists"),
    ],
)
def test_what_no_table_can_hold_is_refused_in_a_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(FedkinError, match=says):
        Federation.from_frame(written(["1"] * 40).assign(**change), "site", "y")


def test_lazy_frames_of_polars_are_collected() -> None:
    polars = pytest.importorskip("polars")
    frame = written([str(k) for k in range(40)])
    lazy = Federation.from_frame(polars.from_pandas(frame).lazy(), "site", "y")
    assert lazy.fingerprint() == Federation.from_frame(frame, "site", "y").fingerprint()
