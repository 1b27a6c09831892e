"""What is read off and drawn of curves over rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkin.reproduction import figures, tables
from fedkin.reproduction.cells import Cell, cells_of, compute
from fedkin.reproduction.kept import Kept
from fedkin.reproduction.summary import Measured, summary_of

TABLE = """
kind = "figure"
title = "t"
paper = "p"
statistics = ["rounds_to"]
[drawing]
kind = "rounds"
panels = ["metric", "global", "loss"]
[training]
lr = 0.3
[run]
rounds = 12
eval_every = 1
global_test = true
[columns.a]
title = "A"
data = { name = "digits", clients = 3 }
model = "mlr"
level = 0.8
[rows.local]
title = "Local"
algorithm = "local"
[rows.fedavg]
title = "FedAvg"
algorithm = "fedavg"
"""


def measured(curves: dict[str, list[dict[str, Any]]], text: str = TABLE) -> Measured:
    """Rows with the *post* curve of every seed."""
    records = {
        (row, "a"): [{"curve": {"post": one}, "seconds": 0.0, "key": row} for one in seeds]
        for row, seeds in curves.items()
    }
    return Measured(tables.parse_table("t", text), "paper", records)


def test_rounds_to_a_level_are_a_mean_over_seeds() -> None:
    first, second = {"round": [2, 4, 6], "mean": [0.7, 0.8, 0.9]}, {"round": [2, 4, 6], "mean": [0.85, 0.6, 0.9]}
    found = measured({"local": [first, second]}).number("local", "a", "rounds_to", "post")
    assert found is not None
    assert (found.value, found.spread) == (3.0, 1.0)


def test_of_errors_less_is_better() -> None:
    errors = {"round": [1, 2, 3], "mean": [0.9, 0.7, 0.85]}
    found = measured({"local": [errors]}, f"larger_is_better = false\n{TABLE}").number(
        "local", "a", "rounds_to", "post"
    )
    assert found is not None
    assert found.value == 2.0


def test_a_level_that_one_seed_never_reaches_has_no_number() -> None:
    low = {"round": [1], "mean": [0.7]}
    study = measured({"local": [{"round": [1], "mean": [0.9]}, low]})
    assert study.number("local", "a", "rounds_to", "post") is None


def test_a_moment_that_was_tested_at_the_end_alone_tells_no_first_round() -> None:
    """As *post* is where not all clients take part."""
    often = {"round": [1, 2, 3, 4], "mean": [0.7, 0.75, 0.85, 0.9]}
    curves = {"pre": often, "post": {"round": [4], "mean": [0.95]}}
    record = {"curve": curves, "seconds": 0.0, "key": "k"}
    study = Measured(tables.parse_table("t", TABLE), "paper", {("local", "a"): [record]})
    assert study.number("local", "a", "rounds_to", "post") is None
    found = study.number("local", "a", "rounds_to", "pre")
    assert found is not None
    assert found.value == 3.0


def test_cells_keep_the_curves_that_a_figure_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, records = tables.parse_table("t", f"{TABLE}\n[scales.smoke]\nseeds = 1\nrun = {{ rounds = 2 }}"), {}
    for cell in cells_of(table, "paper"):
        record = compute(cell, Kept(tmp_path))
        assert record is not None
        records[cell.row, cell.column] = [record]
    curve = records["local", "a"][0]["curve"]
    assert list(curve["loss"]["round"]) == list(range(1, 13))
    assert curve["loss"]["mean"][-1] < curve["loss"]["mean"][0]
    assert len(curve["global_pre"]["round"]) == len(curve["global_post"]["mean"]) == 12
    assert curve["global_pre"]["mean"][-1] == pytest.approx(records["local", "a"][0]["pre"]["global"])
    study = Measured(table, "paper", records)
    assert {line["verdict"] for line in summary_of(study)["cells"]} <= {"not in the paper", "never at 0.8"}
    drawn, paint = [], figures._rounds

    def noted(*asked: Any) -> None:
        drawn.append(asked[-1])
        paint(*asked)

    monkeypatch.setattr(figures, "_rounds", noted)
    assert figures.draw_published(study, tmp_path / "picture.png") == tmp_path / "picture.png"
    assert drawn == ["metric", "global", "loss"]


@pytest.mark.parametrize(("period", "rounds"), [(None, [1, 2, 3, 4]), (2, [2, 4]), ([1, 4], [1, 4])])
def test_logs_are_kept_of_the_rounds_whose_cohort_is_sampled_in_groups(
    period: int | list[int] | None, rounds: list[int], tmp_path: Path, small_data: Path
) -> None:
    """FedCedar's Q, every so many rounds or a list of them; its fingerprint sees the first of them."""
    parameters = {"clusters": 3, "lr": 0.1, "period": period}
    settings = {
        "data": {"name": "mnist", "clients": 6, "partition": "topology:1", "samples": 240},
        "model": "mlr",
        "algorithm": "fedcedar",
        "parameters": {name: value for name, value in parameters.items() if value is not None},
        "graph": None,
        "run": {"rounds": 4, "fraction": 0.7},
    }
    record = compute(Cell("t", "paper", "fedcedar", "a", 0, settings, ("rand_index",)), Kept(tmp_path))
    assert record is not None
    assert "failed" not in record
    assert list(record["lines"]["rand_index"]["x"]) == rounds
    assert record["fingerprint"] is not None
