"""A benchmark ends: a case that takes too long is given up and written down, one that breaks is told."""

from __future__ import annotations

import json
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import timing

    monkeypatch.setattr(timing, "LATE", [])
    return timing


def test_a_case_that_takes_too_long_is_given_up_and_recorded(
    timing: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "machine", dict)  # its speed is not what this is about
    began = time.monotonic()
    assert timing.case("asleep", 1.0, time.sleep, 600) is None
    assert time.monotonic() - began < 60
    timing.write(tmp_path / "found.json", [])
    assert json.loads((tmp_path / "found.json").read_text())["late"] == [{"case": "asleep", "limit_seconds": 1.0}]


def test_a_case_answers_from_a_fresh_process(timing: ModuleType) -> None:
    assert timing.case("a sum", 120, sum, [1, 2]) == 3
    assert timing.LATE == []


def test_a_case_that_breaks_says_why(timing: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        timing.case("a fault", 120, divmod, 1, 0)


def test_the_processor_is_described_by_name_and_vector_units(timing: ModuleType) -> None:
    found = timing.described()
    assert found["processor"]
    assert set(found["vector_units"]) <= set(timing.VECTORS)


@pytest.mark.parametrize("name", ["hidden_costs", "round_parts"])
def test_every_function_that_is_watched_is_there(timing: ModuleType, name: str) -> None:
    places = import_module(name).PLACES
    assert places
    assert [(owner, function) for owner, function, _ in places if not callable(getattr(owner, function, None))] == []
