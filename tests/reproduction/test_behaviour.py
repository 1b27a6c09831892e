"""The fingerprint follows what the code does: any change of method shows, no change of wording does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkin import data
from fedkin.algorithms.fedprox import FedProx
from fedkin.reproduction import behaviour, reproduce, tables
from fedkin.reproduction.kept import Kept

SETTINGS: dict[str, Any] = {
    "data": {"name": "har", "clients": 5},
    "model": "mlr",
    "algorithm": "fedprox",
    "parameters": {"lr": 0.1, "epochs": 3, "mu": 0.5},
    "graph": None,
    "run": {"rounds": 100},
}


@pytest.fixture(autouse=True)
def _nothing_remembered(small_data: Path) -> Iterator[None]:
    for memory in (behaviour._tried, behaviour._clients):
        memory.cache_clear()
    yield
    for memory in (behaviour._tried, behaviour._clients):
        memory.cache_clear()


def found(**changes: Any) -> str | None:
    return behaviour.behaviour_of({**SETTINGS, **changes}, {})


def anew() -> str | None:
    behaviour._tried.cache_clear()
    behaviour._clients.cache_clear()
    return found()


def test_the_same_code_has_the_same_fingerprint() -> None:
    before = found()
    assert anew() == before is not None


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
    local = FedProx.local
    stronger = {"mu": 0.6}
    monkeypatch.setattr(FedProx, "local", lambda self, *args: local(self.model_copy(update=stronger), *args))
    assert anew() not in (None, before)


def test_other_real_clients_have_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = found()
    load = data.load
    monkeypatch.setattr(data, "load", lambda name, *, seed, **more: load(name, seed=seed + 1, **more))
    assert anew() not in (None, before)


def test_what_cannot_be_tried_has_no_fingerprint() -> None:
    assert found(graph="no-such-builder", algorithm="fedu", parameters={}) is None
    assert found(data={"name": "digits"}) is None  # no made-up clients of this kind
    assert behaviour.behaviour_of(SETTINGS, SETTINGS) is None  # shorter than a fingerprint


def test_functions_are_called_in_their_short_form() -> None:
    short = tables.find_table("fedrelax.figure1b").settings("alone", "s0", "smoke")
    long = {**short, "parameters": {"no_such_parameter": 1}}  # would be refused if it were called
    assert behaviour.behaviour_of(long, short) is not None


@pytest.fixture
def kept(tmp_path: Path, small_data: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The only cell of a table, trained."""
    made = tables.parse_table("own.table", TABLE)
    monkeypatch.setattr(reproduce, "find_table", lambda name: made)
    found = Kept(tmp_path)
    reproduce.carry_out(reproduce.plan("own.table", "desk", found), jobs=1)
    return found


def test_verifying_marks_the_cells_of_code_that_does_something_else(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reproduce.verify("own.table", kept) == {"same": 1}
    local = FedProx.local
    with monkeypatch.context() as patch:
        patch.setattr(FedProx, "local", lambda self, *args: local(self.model_copy(update={"mu": 0.6}), *args))
        behaviour._tried.cache_clear()
        assert reproduce.verify("own.table", kept) == {"outdated": 1}
    again = reproduce.plan("own.table", "desk", Kept(tmp_path))
    assert len(again.todo) == again.summary()["older_code"] == 1
    assert reproduce.plan("own.table", "desk", Kept(tmp_path), any_code=True).todo == ()
    behaviour._tried.cache_clear()
    assert reproduce.verify("own.table", kept) == {"same": 1}  # the mark goes when the code is back
    assert reproduce.plan("own.table", "desk", Kept(tmp_path)).todo == ()


def test_without_the_data_nothing_is_told_and_no_mark_changes(
    tmp_path: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (tmp_path / "own.table.jsonl").read_bytes()
    monkeypatch.setattr(behaviour, "behaviour_of", lambda settings, short: None)
    assert reproduce.verify("own.table", kept) == {"unknown": 1}
    assert (tmp_path / "own.table.jsonl").read_bytes() == before


TABLE = """
title = "One method on HAR"
paper = "none"
seeds = 1
run = { rounds = 2 }
columns.a = { title = "A", data = { name = "har", clients = 4 }, model = "mlr" }
rows.fedprox = { title = "FedProx", algorithm = "fedprox", parameters = { mu = 0.5 } }
scales.smoke = { run = { rounds = 1 } }
scales.desk = {}
"""
