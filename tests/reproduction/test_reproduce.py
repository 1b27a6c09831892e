"""Cells are computed once, kept, taken up after an interruption, and computed again when the code changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedkin import FedkinError
from fedkin.cli import app
from fedkin.reproduction import cells, code, page, pool, reproduce, tables

TABLE = """
title = "Digits, three methods"
paper = "none"
seeds = 2
[training]
epochs = 1
[run]
rounds = 4
[columns.a]
title = "A"
data = { name = "digits", clients = 4 }
model = "mlr"
[rows.local]
title = "Local"
algorithm = "local"
[rows.fedavg]
title = "FedAvg"
algorithm = "fedavg"
published = { a = "90±1" }
[rows.fedavgft]
title = "FedAvg + fine-tuning"
algorithm = "fedavgft"
[rows.newer]
title = "Newer"
algorithm = "fedtomorrow"
[[claims]]
says = "fine-tuning helps"
check = "fedavgft > fedavg"
[scales.smoke]
says = "1 seed"
seeds = 1
[scales.desk]
says = "1 seed"
seeds = 1
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> tables.Table:
    made = tables.parse("own.table", TABLE)
    for module in (tables, reproduce, page):
        monkeypatch.setattr(module, "get", lambda name: made)
    monkeypatch.setattr(page, "names", lambda: ["own.table"])
    return made


def test_cells_are_kept_and_methods_that_train_alike_share_one(table: tables.Table, tmp_path: Path) -> None:
    plan = reproduce.plan("own.table", "desk", tmp_path)
    assert [cell.row for cell in plan.todo] == ["local", "fedavg"]
    assert plan.missing == {"newer": "the method 'fedtomorrow' is not available in this version"}
    assert reproduce.run(plan, jobs=1)
    assert reproduce.plan("own.table", "desk", tmp_path).todo == ()
    summary = json.loads((tmp_path / "own.table" / "desk" / "summary.json").read_text())
    lines = {line["row"]: line for line in summary["cells"]}
    assert lines["fedavgft"]["post"] == lines["fedavg"]["post"] != lines["fedavg"]["pre"]
    assert lines["newer"]["verdict"] == "not run: the method 'fedtomorrow' is not available in this version"
    record = plan.todo[0].read()
    assert record is not None
    assert len(record["clients"]["pre"]) == 4
    assert record["curve"]["pre"]["round"] == [1, 2, 3, 4]
    assert not list((tmp_path / "own.table" / "desk" / ".running").glob("*"))


def test_other_code_means_other_cells_unless_told(
    table: tables.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce.run(reproduce.plan("own.table", "desk", tmp_path), jobs=1)
    monkeypatch.setattr(code, "version", lambda settings: "another")
    assert len(reproduce.plan("own.table", "desk", tmp_path).todo) == 2
    kept = reproduce.plan("own.table", "desk", tmp_path, any_code=True)
    assert kept.todo == ()
    assert kept.summary()["older_code"] == 2


def test_a_cell_of_another_table_is_the_same_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another name of the column, another scale, another table: what counts are the settings, the seed and the code."""
    made = {
        "own.table": tables.parse("own.table", TABLE),
        "own.figure": tables.parse("own.figure", TABLE.replace("columns.a]", "columns.b]").replace("{ a =", "{ b =")),
    }
    for module in (tables, reproduce, page):
        monkeypatch.setattr(module, "get", made.__getitem__)
    monkeypatch.setattr(page, "names", lambda: list(made))
    reproduce.run(reproduce.plan("own.table", "desk", tmp_path, rows=["fedavg"]), jobs=1)
    found = reproduce.plan("own.figure", "smoke", tmp_path)
    assert [cell.row for cell in found.todo] == ["local"]
    assert len(found.kept) == 1
    summary = {line["row"]: line for line in found.summary()["cells"]}
    assert summary["fedavg"]["pre"] is not None
    assert summary["local"]["pre"] is None
    nothing_left = reproduce.plan("own.figure", "desk", tmp_path, rows=["fedavg", "fedavgft"])
    assert nothing_left.todo == ()
    assert reproduce.run(nothing_left, jobs=1)  # nothing to compute, and a summary to write
    assert "## Digits" in "\n".join(part for plan in page.kept(tmp_path) for part in page.section(plan, tmp_path))
    assert [plan.table.name for plan in page.kept(tmp_path)] == ["own.table", "own.figure"]
    assert reproduce.plan("own.figure", "desk", tmp_path, seeds=2, rows=["fedavg"]).todo[0].seed == 1
    names = ["own.table", "own.figure", "--rows", "local", "--jobs", "1", "--out", str(tmp_path / "anew")]
    said = CliRunner().invoke(app, ["reproduce", *names]).stderr
    assert "own.table at desk scale (1 seed): 1 cells to compute" in said
    assert "own.figure at desk scale (1 seed): 0 cells to compute, 1 side by side; 1 kept" in said


def test_columns_with_the_same_settings_are_computed_once(
    table: tables.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = TABLE.replace(
        "[rows.local]", '[columns.b]\ntitle = "B"\ndata = { clients = 4, name = "digits" }\nmodel = "mlr"\n[rows.local]'
    )
    monkeypatch.setattr(reproduce, "get", lambda name: tables.parse("own.table", twice))
    plan = reproduce.plan("own.table", "desk", tmp_path)
    assert [(cell.row, cell.column) for cell in plan.todo] == [("local", "a"), ("fedavg", "a")]
    reproduce.run(plan, jobs=1)
    numbers = {(line["row"], line["column"]): line["post"] for line in plan.summary()["cells"]}
    assert numbers["local", "a"] == numbers["local", "b"] is not None


def test_a_cell_of_the_code_at_hand_is_preferred(table: tables.Table, tmp_path: Path) -> None:
    cell = reproduce.plan("own.table", "desk", tmp_path).todo[0]
    for place, version in ((cell.path, "old"), (tmp_path / "other" / "paper" / cell.path.name, cell.code)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"code": version}))
    assert cell.read() == {"code": cell.code}
    place.write_text(json.dumps({"code": "older"}))
    assert cell.read() == {"code": "old"}
    cell.path.unlink()
    for spoilt in ("{", "{}", "[]", "3"):  # half a file is no cell, nor is any other JSON
        place.write_text(spoilt)
        assert cell.read() is None


def test_a_stopped_cell_goes_on_and_ends_with_the_same_numbers(table: tables.Table, tmp_path: Path) -> None:
    whole = reproduce.plan("own.table", "desk", tmp_path / "whole").todo[1]
    parts = reproduce.plan("own.table", "desk", tmp_path / "parts").todo[1]
    assert cells.compute(whole)
    assert not cells.compute(parts, lambda round, rounds: round == 2)
    assert parts.run_folder.exists()
    assert parts.read() is None
    seen: list[int] = []
    assert cells.compute(parts, lambda round, rounds: bool(seen.append(round)))
    assert seen == [3, 4]
    one, other = whole.read(), parts.read()
    assert one is not None
    assert other is not None
    assert one["clients"] == other["clients"]
    assert one["curve"] == other["curve"]


def test_a_run_that_diverges_is_kept_with_its_reason(table: tables.Table, tmp_path: Path) -> None:
    cell = reproduce.plan("own.table", "desk", tmp_path).todo[1]
    settings = {**cell.settings, "parameters": {"lr": 1e30, "epochs": 3}}
    broken = cells.Cell("fedavg", "a", 0, settings, "code", tmp_path)
    assert cells.compute(broken)
    record = broken.read()
    assert record is not None
    assert "every client failed" in record["failed"] or "diverged" in record["failed"]


def test_side_by_side_gives_the_same_numbers(table: tables.Table, tmp_path: Path) -> None:
    one, two = (reproduce.plan("own.table", "desk", tmp_path / name) for name in ("one", "two"))
    told: list[str] = []
    assert pool.run(one.todo, 1, lambda cell, kind, detail: None)
    assert pool.run(two.todo, 2, lambda cell, kind, detail: told.append(kind))
    assert told.count("done") == 2
    for first, second in zip(one.todo, two.todo):
        a, b = first.read(), second.read()
        assert a is not None
        assert b is not None
        assert a["clients"] == b["clients"]


@pytest.mark.skipif(not hasattr(os, "setsid"), reason="needs POSIX signals")
def test_ctrl_c_loses_nothing(tmp_path: Path) -> None:
    """A command that is interrupted ends with 130, leaves a checkpoint, and goes on from it."""
    script = (
        "import sys; from fedkin.reproduction import tables; from fedkin.cli import main\n"
        f"made = tables.parse('own.table', {TABLE.replace('rounds = 4', 'rounds = 100000')!r})\n"
        "from fedkin.reproduction import reproduce; reproduce.get = lambda name: made\n"
        f"sys.argv = ['fedkin', 'reproduce', 'own.table', '--out', {str(tmp_path)!r}, '--jobs', '1', '--rows', 'local']\n"
        "main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    running = tmp_path / "own.table" / "desk" / ".running"
    limit = time.monotonic() + 120
    while not list(running.glob("*/config.toml")) and time.monotonic() < limit:
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "nothing computed is lost" in said
    assert list(running.glob("*/checkpoints/*.safetensors"))


def test_code_versions_follow_what_a_method_imports() -> None:
    def of(algorithm: str, data: str = "digits") -> set[str]:
        return {code.version({"algorithm": algorithm, "data": {"name": data}})}

    assert of("fedavg") == of("fedavg")
    assert len(of("fedavg") | of("fedu") | of("fedpnp") | of("fedavg", "mnist")) == 4


def test_docstrings_and_comments_do_not_change_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    versions = []
    for k, source in enumerate(('"""A."""\nx = 1\n', '# why\n"""B."""\n\nx = 1  # one\n', "x = 2\n")):
        (tmp_path / f"own_module_{k}.py").write_text(source)
        found = code._read(f"own_module_{k}")
        assert found is not None
        versions.append(found[1])
    assert versions[0] == versions[1] != versions[2]


# --- the command --------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_table_and_writes_json(table: tables.Table, tmp_path: Path) -> None:
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
        reproduce.plan("fedcedar.figure4", "smoke", tmp_path, columns=["k4"])
    assert "\n" not in str(problem.value)
    nothing = reproduce.plan("fedcedar.figure4", "smoke", tmp_path)
    with pytest.raises(FedkinError, match="nothing can be run here: no data: svhn"):
        reproduce.run(nothing)


def test_the_page_is_made_of_kept_cells(table: tables.Table, tmp_path: Path) -> None:
    reproduce.run(reproduce.plan("own.table", "desk", tmp_path / "results"), jobs=1)
    written = page.write_page(tmp_path / "results", tmp_path / "docs" / "reproduction.md").read_text()
    assert "## Digits, three methods" in written
    assert "| FedAvg | 90.00 ± 1.00 |" in written
    assert "fine-tuning helps: **" in written
    assert "do not edit it" in written
    empty = page.write_page(tmp_path / "nothing", tmp_path / "empty.md").read_text()
    assert "- Digits, three methods (`own.table`): the method 'fedtomorrow' is not available" in empty
