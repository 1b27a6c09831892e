"""Cells are computed once, kept, taken up after an interruption, and shown without training."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedkin import FedkinError
from fedkin.cli import app
from fedkin.files import plain
from fedkin.reproduction import cells, page, pool, reproduce, tables
from fedkin.reproduction.kept import Kept

TABLE = """
title = "Digits, three methods"
paper = "none"
seeds = 2
training = { epochs = 1 }
run = { rounds = 4 }
columns.a = { title = "A", data = { name = "digits", clients = 4 }, model = "mlr" }
rows.local = { title = "Local", algorithm = "local" }
rows.fedavg = { title = "FedAvg", algorithm = "fedavg", published = { a = "90±1" } }
rows.fedavgft = { title = "FedAvg + fine-tuning", algorithm = "fedavgft" }
rows.newer = { title = "Newer", algorithm = "fedtomorrow" }
scales.smoke = { says = "1 seed", seeds = 1 }
scales.desk = { says = "1 seed", seeds = 1 }
claims = [{ says = "fine-tuning helps", check = "fedavgft > fedavg" }]
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> tables.PublishedTable:
    made = tables.parse_table("own.table", TABLE)
    for module in (tables, reproduce, page):
        monkeypatch.setattr(module, "find_table", lambda name: made)
    monkeypatch.setattr(page, "table_names", lambda: ["own.table"])
    return made


def test_cells_are_kept_and_methods_that_train_alike_share_one(table: tables.PublishedTable, tmp_path: Path) -> None:
    plan = reproduce.plan("own.table", "desk", Kept(tmp_path))
    assert [cell.row for cell in plan.todo] == ["local", "fedavg"]
    assert plan.missing == {"newer": "the method 'fedtomorrow' is not available in this version"}
    assert reproduce.carry_out(plan, jobs=1)
    assert reproduce.plan("own.table", "desk", Kept(tmp_path)).todo == ()
    lines = {line["row"]: line for line in plan.summary()["cells"]}
    assert lines["fedavgft"]["post"] == lines["fedavg"]["post"] != lines["fedavg"]["pre"]
    assert lines["newer"]["verdict"] == "not run: the method 'fedtomorrow' is not available in this version"
    record = Kept(tmp_path).records[plan.todo[0].key]
    assert len(record["clients"]["pre"]) == 4
    assert record["curve"]["pre"]["round"] == [1, 2, 3, 4]
    assert not list((tmp_path / ".running").glob("*"))


def test_a_cell_of_another_table_is_the_same_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another name of the column, another scale, another table: what counts are the settings and the seed."""
    renamed = TABLE.replace("columns.a =", "columns.b =").replace("{ a =", "{ b =")
    made = {
        "own.table": tables.parse_table("own.table", TABLE),
        "own.figure": tables.parse_table("own.figure", f'kind = "figure"\n{renamed}'),
    }
    for module in (tables, reproduce, page):
        monkeypatch.setattr(module, "find_table", made.__getitem__)
    monkeypatch.setattr(page, "table_names", lambda: list(made))
    reproduce.carry_out(reproduce.plan("own.table", "desk", Kept(tmp_path), rows=["fedavg"]), jobs=1)
    found = reproduce.plan("own.figure", "smoke", Kept(tmp_path))
    assert [cell.row for cell in found.todo] == ["local"]
    assert len(found.found) == 1
    summary = {line["row"]: line for line in found.summary()["cells"]}
    assert summary["fedavg"]["pre"] is not None
    assert summary["local"]["pre"] is None
    nothing_left = reproduce.plan("own.figure", "desk", Kept(tmp_path), rows=["fedavg", "fedavgft"])
    assert nothing_left.todo == ()
    assert reproduce.carry_out(nothing_left, jobs=1)  # nothing to compute, and a picture to draw
    assert "## Digits" in "\n".join(
        part for plan in page.kept_tables(Kept(tmp_path)) for part in page.table_section(plan, tmp_path)
    )
    assert [plan.table.name for plan in page.kept_tables(Kept(tmp_path))] == ["own.table", "own.figure"]
    assert reproduce.plan("own.figure", "desk", Kept(tmp_path), seeds=2, rows=["fedavg"]).todo[0].seed == 1
    names = ["own.table", "own.figure", "--rows", "local", "--jobs", "1", "--out", str(tmp_path / "anew")]
    said = CliRunner().invoke(app, ["reproduce", *names]).stderr
    assert "own.table at desk scale (1 seed): 1 cells to compute" in said
    assert "own.figure at desk scale (1 seed): 0 cells to compute, 1 side by side; 1 kept" in said


def test_columns_with_the_same_settings_are_computed_once(
    table: tables.PublishedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = TABLE.replace(
        "rows.local", 'columns.b = { title = "B", data = { clients = 4, name = "digits" }, model = "mlr" }\nrows.local'
    )
    monkeypatch.setattr(reproduce, "find_table", lambda name: tables.parse_table("own.table", twice))
    plan = reproduce.plan("own.table", "desk", Kept(tmp_path))
    assert [(cell.row, cell.column) for cell in plan.todo] == [("local", "a"), ("fedavg", "a")]
    reproduce.carry_out(plan, jobs=1)
    numbers = {(line["row"], line["column"]): line["post"] for line in plan.summary()["cells"]}
    assert numbers["local", "a"] == numbers["local", "b"] is not None


def record(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "scale": "desk", "seed": 0, "seconds": 1.0, **more}


def test_a_cell_is_replaced_where_it_stands_and_others_stay(tmp_path: Path) -> None:
    one, other = Kept(tmp_path), Kept(tmp_path)
    one.put("a", [record("x", n=1), record("y", n=1)])
    other.put("a", [record("z", n=1)])  # another process that knows of neither
    Kept(tmp_path).put("b", [record("x", n=2), record("w", n=0.123456789)])
    numbers = {key: found["n"] for key, found in Kept(tmp_path).records.items()}
    assert numbers == {"x": 2, "y": 1, "z": 1, "w": 0.123457}
    assert [json.loads(line)["key"] for line in (tmp_path / "a.jsonl").read_text().splitlines()] == ["x", "y", "z"]
    assert [found["key"] for found in Kept(tmp_path).of("b", "desk")] == ["w"]


def test_a_cell_that_is_not_outdated_is_preferred(tmp_path: Path) -> None:
    for name, outdated in (("a", True), ("b", False), ("c", False)):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record("x", table=name, outdated=outdated)) + "\n")
    assert Kept(tmp_path).records["x"]["table"] == "b"


@pytest.mark.parametrize("spoilt", ["{", "{}", "[]", "3", "<<<<<<< HEAD"])
def test_a_spoilt_line_is_refused_by_its_place(spoilt: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record("x")) + f"\n{spoilt}\n")
    with pytest.raises(FedkinError, match=r"a.jsonl, line 2 is not a cell; remove the line"):
        Kept(tmp_path)


def test_the_folders_of_an_older_version_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "fedu.full" / "desk").mkdir(parents=True)
    (tmp_path / "fedu.full" / "desk" / "a.fedu.0.key.json").write_text("{}")
    result = CliRunner().invoke(app, ["reproduce", "fedu.full", "--out", str(tmp_path), "--show"])
    assert result.exit_code == 2
    assert "is a cell of an older fedkin" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_stopped_cell_goes_on_and_ends_with_the_same_numbers(table: tables.PublishedTable, tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    cell = reproduce.plan("own.table", "desk", kept).todo[1]
    whole = cells.compute(cell, Kept(tmp_path / "whole"))
    assert cells.compute(cell, kept, lambda round, rounds: round == 2) is None
    assert kept.checkpoints(cell.key, None).exists()
    seen: list[int] = []
    parts = cells.compute(cell, kept, lambda round, rounds: bool(seen.append(round)))
    assert seen == [3, 4]
    assert whole is not None
    assert parts is not None
    assert plain(whole["clients"]) == plain(parts["clients"])
    assert plain(whole["curve"]) == plain(parts["curve"])


def test_a_finished_cell_that_was_not_kept_is_not_trained_again(table: tables.PublishedTable, tmp_path: Path) -> None:
    """The parent may be gone when a worker hands its record over."""
    kept = Kept(tmp_path)
    cell = reproduce.plan("own.table", "desk", kept).todo[1]
    first = cells.compute(cell, kept)
    again = cells.compute(cell, kept, lambda round, rounds: pytest.fail("trained again"))
    assert first is not None
    assert again is not None
    assert plain(first["clients"]) == plain(again["clients"])


def test_a_run_that_diverges_is_kept_with_its_reason(table: tables.PublishedTable, tmp_path: Path) -> None:
    cell = reproduce.plan("own.table", "desk", Kept(tmp_path)).todo[1]
    broken = replace(cell, settings={**cell.settings, "parameters": {"lr": 1e30, "epochs": 3}})
    assert pool.compute_all([broken], Kept(tmp_path), 1, lambda cell, kind, detail: None)
    reason = Kept(tmp_path).records[broken.key]["failed"]
    assert "every client failed" in reason or "diverged" in reason


def test_side_by_side_gives_the_same_numbers(table: tables.PublishedTable, tmp_path: Path) -> None:
    one, two = (reproduce.plan("own.table", "desk", Kept(tmp_path / name)) for name in ("one", "two"))
    told: list[str] = []
    assert pool.compute_all(one.todo, one.kept, 1, lambda cell, kind, detail: None)
    assert pool.compute_all(two.todo, two.kept, 2, lambda cell, kind, detail: told.append(kind))
    assert told.count("done") == 2
    for cell in one.todo:
        first, second = (Kept(tmp_path / name).records[cell.key] for name in ("one", "two"))
        assert first["clients"] == second["clients"]


@pytest.mark.skipif(not hasattr(os, "setsid"), reason="needs POSIX signals")
def test_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    """A command that is interrupted ends with 130, leaves a checkpoint, and goes on from it."""
    script = (
        "import sys; from fedkin.reproduction import tables; from fedkin.cli import main\n"
        f"made = tables.parse_table('own.table', {TABLE.replace('rounds = 4', 'rounds = 100000')!r})\n"
        "from fedkin.reproduction import reproduce; reproduce.find_table = lambda name: made\n"
        f"sys.argv = ['fedkin', 'reproduce', 'own.table', '--out', {str(tmp_path)!r}, '--jobs', '1', '--rows', 'local']\n"
        "main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    running = tmp_path / ".running"
    limit = time.monotonic() + 120
    while not list(running.glob("*/config.toml")) and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "nothing computed is lost" in said
    assert list(running.glob("*/checkpoints/*.safetensors"))


# --- the command --------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_table_and_writes_json(table: tables.PublishedTable, tmp_path: Path) -> None:
    command = ["reproduce", "own.table", "--jobs", "1", "--out", str(tmp_path), "--json", str(tmp_path / "all.json")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "FedAvg + fine-tuning" in result.output
    assert "fine-tuning helps" in result.output
    assert json.loads((tmp_path / "all.json").read_text())["tables"][0]["scale"] == "desk"
    again = CliRunner().invoke(app, [*command, "--show"])
    assert again.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedu.table9"], "did you mean 'fedu.table1'"),
        (["fedu.table1", "--scale", "large"], "unknown scale 'large'"),
        (["fedu.table1", "--columns", "har"], "unknown column of fedu.table1 'har'; did you mean"),
        (["fedu.table1", "--rows", "fedprx"], "unknown row of fedu.table1 'fedprx'; did you mean 'fedprox'"),
    ],
)
def test_wrong_names_are_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_data_that_is_not_at_hand_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(
        FedkinError, match=r"fedcedar.figure4, k4: no data: svhn .* put its files in a folder"
    ) as problem:
        reproduce.plan("fedcedar.figure4", "smoke", Kept(tmp_path), columns=["k4"])
    assert "\n" not in str(problem.value)
    nothing = reproduce.plan("fedcedar.figure4", "smoke", Kept(tmp_path))
    with pytest.raises(FedkinError, match="nothing can be run here: no data: svhn"):
        reproduce.carry_out(nothing)


def test_the_page_is_made_of_kept_cells(table: tables.PublishedTable, tmp_path: Path) -> None:
    reproduce.carry_out(reproduce.plan("own.table", "desk", Kept(tmp_path / "results")), jobs=1)
    path = page.write_page(tmp_path / "results", tmp_path / "docs" / "reproduction.md")
    assert "do not edit it" in path.read_text()
    assert "[own.table](reproduction-own.md#digits-three-methods-desk)" in path.read_text()
    written = path.with_name("reproduction-own.md").read_text()
    assert "## Digits, three methods (desk)" in written
    assert "| FedAvg | 90.00 ± 1.00 |" in written
    assert "fine-tuning helps: **" in written
    empty = page.write_page(tmp_path / "nothing", tmp_path / "empty.md").read_text()
    assert "- Digits, three methods (`own.table`): the method 'fedtomorrow' is not available" in empty


def test_showing_and_rendering_train_nothing(
    table: tables.PublishedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a run nor a function, of cells of whatever code."""
    kept = Kept(tmp_path)
    reproduce.carry_out(reproduce.plan("own.table", "desk", kept), jobs=1)
    kept.put("own.table", [{**found, "outdated": True, "fingerprint": "else"} for found in kept.records.values()])

    def trained(*args: Any, **more: Any) -> None:
        raise AssertionError("something was trained")

    for place in ("fedkin.run.make_run", "fedkin.run.Run.run", "fedkin.reproduction.behaviour._tried"):
        monkeypatch.setattr(place, trained)
    shown = CliRunner().invoke(app, ["reproduce", "own.table", "--show", "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "2 cells are of an older version of the code" in shown.output
    rendered = CliRunner().invoke(app, ["reproduce", "--render", str(tmp_path / "page.md"), "--out", str(tmp_path)])
    assert rendered.exit_code == 0, rendered.output
    assert "2 cells were computed by an older version of the code" in (tmp_path / "page-own.md").read_text()
    computed = CliRunner().invoke(app, ["reproduce", "own.table", "--out", str(tmp_path), "--jobs", "1"])
    assert "something was trained" in computed.output  # the spies work
