from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin.data.tabular import InputColumn, from_csv, from_table
from fedkin.errors import FedkinError


def frame(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "site": rng.choice(["north", "south", "west"], n),
            "age": rng.normal(50, 10, n),
            "visits": rng.integers(0, 9, n),
            "smoker": rng.random(n) < 0.3,
            "city": rng.choice(["Rome", "Oslo", "Lima"], n),
            "label": rng.choice(["ill", "well"], n),
        }
    )


def test_types_are_inferred_and_encoded(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    federation = from_csv(tmp_path / "a.csv", client="site", target="label")
    assert federation.names == ("north", "south", "west")
    assert federation.task.classes == ("ill", "well")
    assert federation.task.input_shape == (6,)  # age, visits, smoker, and three cities
    assert federation.train.x[:, :3].mean(axis=0) == pytest.approx([0, 0, 0], abs=1e-5)
    assert federation.train.x[:, :3].std(axis=0) == pytest.approx([1, 1, 1], abs=1e-5)
    assert (federation.train.x[:, 3:].sum(axis=1) == 1).all()
    assert federation.notes == ()


@pytest.mark.parametrize("suffix", ["csv", "tsv", "csv.gz", "parquet"])
def test_every_format_gives_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
        frame().to_parquet(path)
    else:
        frame().to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    federation = from_csv(path, client="site", target="label")
    assert np.allclose(federation.train.x, from_table(frame(), "site", "label").train.x, atol=1e-6)


def test_source_builds_it_again(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    for options in ({}, {"seed": 3, "test_fraction": 0.4, "drop": ["city"], "validation_fraction": 0.1}):
        federation = from_csv(tmp_path / "a.csv", client="site", target="label", **options)
        again = fedkin.data.load(**federation.source)
        assert again.fingerprint() == federation.fingerprint()


def test_nothing_leaks_from_test_rows() -> None:
    """Change only test rows, wildly: the training inputs must not move."""
    table = frame()
    plain = from_table(table, "site", "label")
    marked = table.assign(age=np.arange(len(table), dtype=float))
    split = from_table(marked, "site", "label", standardise=False)
    test_rows = split.test.x[:, 0].astype(int)
    assert len(test_rows) == pytest.approx(50, abs=2)
    table.loc[test_rows, ["age", "visits"]] = 10**6
    table.loc[test_rows, "city"] = "Atlantis"
    changed = from_table(table, "site", "label")
    assert np.array_equal(changed.train.x, plain.train.x)
    assert (changed.test.x[:, 3:] == 0).all()
    assert "1 categories not in training rows" in changed.notes[0]


def test_missing_values_are_counted_and_imputed() -> None:
    table = frame()
    table.loc[:19, "age"] = np.nan
    table.loc[:4, "city"] = None
    table["empty"] = np.nan
    federation = from_table(table, "site", "label")
    assert any("'age': 20 missing values, replaced by the training median" in note for note in federation.notes)
    assert any("'city': 5 missing values, replaced by a category of their own" in note for note in federation.notes)
    assert any("'empty' is empty in all training rows" in note for note in federation.notes)
    assert federation.task.input_shape == (7,)
    with pytest.raises(FedkinError, match="'age' has 20 missing values"):
        from_table(table, "site", "label", missing="error")


def test_the_median_fills_in() -> None:
    column = InputColumn.fit(pd.Series([1.0, 2.0, 9.0, np.nan], name="a"), standardise=False)
    assert column.encode(pd.Series([np.nan, 5.0]))[:, 0].tolist() == [2.0, 5.0]
    constant = InputColumn.fit(pd.Series([3, 3, 3], name="b"))
    assert constant.encode(pd.Series([3, 4]))[:, 0].tolist() == [0.0, 1.0]
    assert InputColumn.fit(pd.Series(["x", "y"], name="c")).inputs == ("c=x", "c=y")


def test_regression_targets() -> None:
    federation = from_table(frame().assign(cost=np.linspace(0, 1, 200)), "site", "cost", drop=["label"])
    assert federation.task.kind == "regression"
    assert len(federation.train.y) + len(federation.test.y) == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"client": "sight"}, "unknown client column 'sight'; did you mean 'site'"),
        ({"target": "lable"}, "unknown target column 'lable'; did you mean 'label'"),
        ({"drop": ["cty"]}, "unknown column 'cty'; did you mean 'city'"),
        ({"target": "site"}, "both client and target"),
        ({"missing": "ignore"}, "unknown missing 'ignore'"),
        ({"max_categories": 2}, "'city' holds 3 different texts"),
        ({"drop": ["age", "visits", "smoker", "city"]}, "no input columns"),
    ],
)
def test_bad_columns_are_one_clear_line(options: dict, words: str) -> None:
    with pytest.raises(FedkinError, match=words) as problem:
        from_table(frame(), **({"client": "site", "target": "label"} | options))
    assert "\n" not in str(problem.value)


def test_bad_tables_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="does not exist"):
        from_csv(tmp_path / "no.csv", "a", "b")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(FedkinError, match="cannot be read as a table"):
        from_csv(tmp_path / "empty.csv", "a", "b")
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(FedkinError, match=r"cannot be read as a table|needs pyarrow") as problem:
        from_csv(tmp_path / "bad.parquet", "a", "b")
    assert "\n" not in str(problem.value)
    with pytest.raises(FedkinError, match="target column 'label' has 1 empty cells"):
        from_table(frame().assign(label=[None, *frame()["label"][1:]]), "site", "label")
    with pytest.raises(FedkinError, match="holds dates"):
        from_table(frame().assign(day=pd.Timestamp("2024-01-01")), "site", "label")
    with pytest.raises(FedkinError, match="infinite"):
        from_table(frame().assign(age=np.inf), "site", "label")
    with pytest.raises(FedkinError, match="a table needs 'target'"):
        fedkin.data.load("csv", path="a.csv", client="a")
    with pytest.raises(FedkinError, match="names its clients itself"):
        fedkin.data.load("csv", clients=3, path="a.csv", client="a", target="b")


def test_the_callers_frame_is_not_changed() -> None:
    table = frame()
    before = table.copy(deep=True)
    from_table(table, "site", "label")
    pd.testing.assert_frame_equal(table, before)
