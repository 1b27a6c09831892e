"""The fingerprint follows what the code does: any change of method shows, no change of wording does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedkin.algorithms.fedprox import FedProx
from fedkin.reproduction import behaviour, code, reproduce, tables

SETTINGS: dict[str, Any] = {
    "data": {"name": "har", "clients": 5},
    "model": "mlr",
    "algorithm": "fedprox",
    "parameters": {"lr": 0.1, "epochs": 3, "mu": 0.5},
    "graph": None,
    "run": {"rounds": 100},
}


@pytest.fixture(autouse=True)
def _no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "cache"))


def found(**changes: Any) -> str | None:
    return behaviour.fingerprint({**SETTINGS, **changes}, {})


def test_a_rewritten_source_that_does_the_same_keeps_its_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(code, "version", lambda settings: "rewritten")
    assert found() == before is not None


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": {"lr": 0.1, "epochs": 3, "mu": 0.501}},
        {"parameters": {"lr": 0.01, "epochs": 3, "mu": 0.01}},
        {"parameters": {"lr": 0.1, "epochs": 3, "mu": 0.5, "batch_size": 2}},
        {"algorithm": "fedavg", "parameters": {"lr": 0.1}},
        {"model": "mlp:3"},
        {"run": {"rounds": 100, "fraction": 0.4}},
    ],
)
def test_every_setting_shows(change: dict[str, Any]) -> None:
    assert found(**change) not in (None, found())


def test_a_weak_pull_shows() -> None:
    """FedProx with μ = 0.01 at rate 0.01 differs from FedAvg by far less than a step."""
    gentle = {"lr": 0.01, "batch_size": 128}
    assert found(parameters={**gentle, "mu": 0.01}) != found(algorithm="fedavg", parameters=gentle) is not None


def test_code_that_does_something_else_has_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(code, "version", lambda settings: "changed")
    local = FedProx.local
    stronger = {"mu": 0.6}
    monkeypatch.setattr(FedProx, "local", lambda self, *args: local(self.model_copy(update=stronger), *args))
    assert found() not in (None, before)


def test_the_source_of_the_data_counts_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    monkeypatch.setattr(code, "version", lambda settings: "changed")
    monkeypatch.setattr(code, "data_version", lambda name: "another partition")
    assert found() not in (None, before)


def test_what_was_tried_once_is_remembered_and_a_damaged_memory_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = found()
    (memory,) = (tmp_path / "cache" / ".behaviour").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(behaviour, "_run", lambda settings: pytest.fail("tried again"))
        assert found() == before
    memory.write_text("{")
    assert found() == before


def test_what_cannot_be_tried_has_no_fingerprint() -> None:
    assert found(graph="no-such-builder", algorithm="fedu", parameters={}) is None
    assert found(data={"name": "digits"}) is None  # no made-up clients of this kind
    assert behaviour.fingerprint(SETTINGS, SETTINGS) is None  # shorter than a fingerprint


def test_functions_are_called_in_their_short_form() -> None:
    short = tables.get("fedrelax.figure1b").settings("alone", "s0", "smoke")
    long = {**short, "parameters": {"no_such_parameter": 1}}  # would be refused if it were called
    assert behaviour.fingerprint(long, short) is not None


def test_a_kept_cell_outlives_an_edit_that_changes_no_number(
    tmp_path: Path, small_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tables.parse("own.table", TABLE)
    monkeypatch.setattr(reproduce, "get", lambda name: made)
    reproduce.run(reproduce.plan("own.table", "desk", tmp_path), jobs=1)
    monkeypatch.setattr(code, "version", lambda settings: "edited")
    again = reproduce.plan("own.table", "desk", tmp_path)
    assert again.todo == ()
    assert again.summary()["older_code"] == 0
    for path in (tmp_path / "own.table" / "desk").glob("a.*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "behaviour": "something else"}))
    assert len(reproduce.plan("own.table", "desk", tmp_path).todo) == 1


TABLE = """
title = "One method on HAR"
paper = "none"
seeds = 1
[run]
rounds = 2
[columns.a]
title = "A"
data = { name = "har", clients = 4 }
model = "mlr"
[rows.fedavg]
title = "FedAvg"
algorithm = "fedavg"
[scales.smoke]
run = { rounds = 1 }
[scales.desk]
"""
