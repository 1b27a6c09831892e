"""The estimate of the time: what kept cells of the same kind took by the round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedkin.reproduction import estimate
from fedkin.reproduction.cells import Cell, cells_of
from fedkin.reproduction.kept import Kept
from fedkin.reproduction.tables import find_table, table_names


def record(cell: Cell, seconds: float) -> dict[str, Any]:
    facts = {"key": cell.key, "scale": cell.scale, "seed": cell.seed, "settings": cell.settings}
    return {**facts, "seconds": seconds, "pre": {}, "post": {}}


def cell(row: str, column: str, scale: str = "desk") -> Cell:
    found = cells_of(find_table("fedu.table1"), scale, seeds=1)
    return next(c for c in found if (c.row, c.column) == (row, column))


def test_nothing_kept_means_nothing_known(tmp_path: Path, small_data: Path) -> None:
    found = {entry["name"]: entry for entry in estimate.listing(Kept(tmp_path))}
    assert list(found) == table_names()
    assert all(seconds is None for entry in found.values() for seconds in entry["seconds"].values())
    assert found["fedska.table1"]["needs"] == "mnist, cifar10, shakespeare"
    assert found["fedrelax.figure1a"]["needs"] == "nothing"


def test_the_time_grows_with_the_rounds(tmp_path: Path, small_data: Path) -> None:
    kept, table = Kept(tmp_path), find_table("fedu.table1")
    desk = cells_of(table, "desk", seeds=1)
    kept.put("fedu.table1", [record(c, 0.5 * c.rounds) for c in desk])
    found = {entry["name"]: entry for entry in estimate.listing(kept)}["fedu.table1"]
    assert found["kept"] == ["desk"]
    different = {c.key: c.rounds for c in desk}
    seeds = table.reduction("desk").seeds or table.seeds
    assert found["seconds"]["desk"] * estimate.cores() == pytest.approx(0.5 * sum(different.values()) * seeds)
    assert found["seconds"]["paper"] is None or found["seconds"]["paper"] > found["seconds"]["desk"]


def test_cells_that_nothing_kept_is_like_are_left_out_and_counted(tmp_path: Path, small_data: Path) -> None:
    kept = Kept(tmp_path)
    kept.put("fedu.table1", [record(c, 1.0) for c in cells_of(find_table("fedu.table1"), "desk", 1) if c.column == "har_dnn"])  # fmt: skip
    found = {entry["name"]: entry for entry in estimate.listing(kept)}["fedu.table1"]
    cells = {c.key: c for c in cells_of(find_table("fedu.table1"), "desk", 1)}
    known = [c for c in cells.values() if c.column == "har_dnn"]
    seeds = find_table("fedu.table1").reduction("desk").seeds or 1
    assert found["seconds"]["desk"] * estimate.cores() == pytest.approx(len(known) * seeds)
    assert found["unknown"]["desk"] == (len(cells) - len(known)) * seeds > 0


def test_the_cells_most_alike_count() -> None:
    one, other = cell("fedavg", "har_convex").settings, cell("fedu", "har_convex").settings
    longer = {**one, "run": {**one["run"], "rounds": 2 * one["run"]["rounds"]}}
    elsewhere = {**one, "model": "unheard-of"}
    of_fedavg, of_fedu = (list(estimate._kinds(settings)) for settings in (one, other))
    rates = {of_fedavg[0]: [1.0], of_fedu[0]: [5.0], of_fedu[1]: [5.0, 7.0], of_fedu[2]: [1.0, 5.0, 9.0]}
    assert estimate.seconds_of(one, rates) == one["run"]["rounds"]
    assert estimate.seconds_of(longer, rates) == 2 * one["run"]["rounds"]
    assert estimate.seconds_of({**one, "parameters": {}}, rates) == 5.0 * one["run"]["rounds"]
    assert estimate.seconds_of({**other, "parameters": {}}, rates) == 6.0 * one["run"]["rounds"]
    assert estimate.seconds_of(elsewhere, rates) is None
