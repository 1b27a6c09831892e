"""What a method's lead over FedAvg is, and how much of it is the moment of testing."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin.reproduction import moment, page, reproduce, tables
from fedkin.reproduction.kept import Kept

TABLE = """
title = "Three methods"
paper = "none"
seeds = 1
run = { rounds = 2 }
columns.a = { title = "A", data = { name = "digits", clients = 4 }, model = "mlr" }
columns.b = { title = "B", data = { name = "digits", clients = 5 }, model = "mlr" }
rows.local = { title = "Local", algorithm = "local" }
rows.fedavg = { title = "FedAvg", algorithm = "fedavg" }
rows.fedavgft = { title = "FedAvg + fine-tuning", algorithm = "fedavgft" }
rows.ours = { title = "Ours", algorithm = "fedprox" }
scales.smoke = {}
scales.desk = { run = { rounds = 1 } }
claims = [{ says = "the question", check = "ours > fedavgft" }]
"""


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> reproduce.Reproduction:
    """Kept cells of column A only."""
    made = tables.parse_table("own.table", TABLE)
    for module in (tables, reproduce, page):
        monkeypatch.setattr(module, "find_table", lambda name: made)
    return keep(reproduce.plan("own.table", "desk", Kept(tmp_path)))


def keep(plan: reproduce.Reproduction) -> reproduce.Reproduction:
    """Numbers for the cells of column A only."""
    numbers = {"local": (0.8, 0.81), "fedavg": (0.6, 0.9), "fedprox": (0.7, 0.88)}
    for cell in plan.todo:
        if cell.column == "a":
            pre, post = numbers[cell.settings["algorithm"]]
            facts = {"key": cell.key, "scale": cell.scale, "seed": cell.seed, "seconds": 1.0, "versions": {}}
            plan.kept.put(cell.table, [{**facts, "pre": {"mean": pre}, "post": {"mean": post}}])
    return plan


def test_a_setting_counts_once_and_only_if_all_of_it_is_measured(plan: reproduce.Reproduction) -> None:
    (line,) = moment.leads([plan, plan])
    assert tuple(line.shown()) == ("own.table, desk", "A", "60.00", "90.00", "81.00", "Ours", "70.00", "88.00")


def test_a_setting_counts_at_the_first_of_its_scales(plan: reproduce.Reproduction, tmp_path: Path) -> None:
    longer = keep(reproduce.plan("own.table", "paper", Kept(tmp_path)))
    assert {cell.key for cell in longer.todo}.isdisjoint(cell.key for cell in plan.cells)
    (line,) = moment.leads([longer, plan])
    assert line.table == "own.table, paper"


def test_the_lead_is_told_as_tested_and_with_both_tested_alike(plan: reproduce.Reproduction) -> None:
    text = "\n".join(moment.moment_section([plan]))
    assert "they lead FedAvg in 1 of the 1 settings below, by +28.0 points" in text
    assert "With both tested after local training (FedAvg + fine-tuning) they lead in 0, by -2.0" in text
    assert "they lead clients that train alone in 1, by +7.0" in text
    assert list(moment.moment_section([])) == []


def test_a_table_without_the_question_is_left_out(plan: reproduce.Reproduction) -> None:
    other = tables.parse_table("t", TABLE.replace("ours > fedavgft", "ours > local"))
    assert moment.own_row(other) is None
    assert moment.own_row(plan.table) == "ours"
