"""The tables on docs/robustness.md are what their generator makes of the committed numbers, and defences what they chose."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedkin import algorithms

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attacks_benchmark", ROOT / "benchmarks" / "attacks.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "attacks.json").read_text())
    return found


def test_the_committed_tables_belong_to_the_committed_numbers(generator: ModuleType, facts: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "robustness.md").read_text()
    assert generator.table(facts) in page
    assert generator.choices(facts) in page


def test_what_is_recommended_is_what_the_folds_chose(generator: ModuleType, facts: dict[str, Any]) -> None:
    for method in generator.METHODS:
        assert algorithms.get(method).defence == generator.chosen(facts, method), method


def test_a_cheaper_defence_is_chosen_only_near_the_best(generator: ModuleType) -> None:
    def losses(**each: float) -> dict[str, dict[str, float]]:
        return {"none": {"no attack": 1.0}, **{name: {"no attack": loss} for name, loss in each.items()}}

    def chosen(**each: float) -> str:
        found: str = generator.chosen({"choice": {"made": {"losses": {"fedu": losses(**each)}}}}, "fedu")
        return found

    assert chosen(clip=1.01, direction=1.0) == "clip"
    assert chosen(clip=1.03, direction=1.0) == "direction"
