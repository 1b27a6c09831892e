"""The estimate of the time: positive where a model can be probed, proportional to the work."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedkin.reproduction import estimate
from fedkin.reproduction.cells import cells_of
from fedkin.reproduction.tables import get, names


def test_work_grows_with_rounds_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "probe", lambda model, data, batch_size: 0.001)
    table = get("fedpnp.table1")
    cell = next(c for c in cells_of(table, "paper", Path(), 1) if (c.row, c.column) == ("fedavg", "mnist02"))
    seconds = estimate.work(cell, table)
    assert seconds == pytest.approx(0.001 * 9000 * 5 * (400 + 10))
    fewer = replace(cell, settings={**cell.settings, "run": {"rounds": 40, "eval_every": 40}})
    assert estimate.work(fewer, table) == pytest.approx(0.001 * 9000 * 5 * 41)
    half = replace(cell, settings={**cell.settings, "data": {**cell.settings["data"], "clients": 10}})
    assert estimate.work(half, table) == pytest.approx(seconds / 2)


def test_the_listing_says_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small_data: Path) -> None:
    monkeypatch.setattr(estimate, "probe", lambda model, data, batch_size: 0.001)
    (tmp_path / "fedu.table1" / "desk").mkdir(parents=True)
    (tmp_path / "fedu.table1" / "desk" / "a.fedu.0.key.json").write_text("{}")
    found = {entry["name"]: entry for entry in estimate.listing(tmp_path)}
    assert list(found) == names()
    assert found["fedu.table1"]["kept"] == ["desk"]
    assert found["fedu.table1"]["seconds"]["paper"] > found["fedu.table1"]["seconds"]["desk"] > 0
    assert found["fedska.table1"]["needs"] == "mnist, cifar10, shakespeare"
    assert found["fedrelax.figure1a"]["needs"] == "nothing"
    assert all(seconds > 0 for entry in found.values() for seconds in entry["seconds"].values())


def test_fewer_windows_are_less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "probe", lambda model, data, batch_size: 0.001)
    table = get("fedska.table2")
    cell = next(c for c in cells_of(table, "desk", Path(), 1) if c.row == "fedavg")
    assert cell.settings["data"] == {"name": "metr-la", "clients": 20, "stride": 4}
    assert estimate.work(cell, table) == pytest.approx(0.001 * 290000 * 20 / 207 / 4 * (60 + 10))
