"""The page "which method when" is what its generator makes of the committed numbers."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedkin.files import plain

ROOT = Path(__file__).parents[2]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("which_method", ROOT / "benchmarks" / "which_method.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "which_method", module)
    spec.loader.exec_module(module)
    return module


def test_a_small_measurement_becomes_a_page(generator: ModuleType) -> None:
    cases = [c for c in generator.CASES if c.title == "digits"]
    methods = ["local", "fedavg", "fedavgft"]
    found = [plain(generator.measure(case, methods, rounds=2, seeds=(0, 1))) for case in cases]
    facts = {"rounds": 2, "seeds": [0, 1], "training": {}, "methods": methods, "cases": found, "machine": {"cores": 2}}
    text = generator.page(facts)
    for line in found[0]["methods"]:
        assert f"| {line['title']} | {line['deployed']['mean']:.1%} |" in text
        seeds = [run["deployed"]["mean"] for run in found[0]["runs"] if run["algorithm"] == line["algorithm"]]
        assert line["deployed"]["mean"] == pytest.approx(sum(seeds) / 2)
    best = max(found[0]["methods"], key=lambda line: line["deployed"]["mean"])
    assert f"- best mean accuracy: **{best['title']}**" in text


def test_the_committed_page_belongs_to_the_committed_numbers(generator: ModuleType) -> None:
    numbers, page = ROOT / "benchmarks" / "which_method.json", ROOT / "docs" / "which-method.md"
    assert numbers.exists() == page.exists()
    if numbers.exists():
        assert generator.page(json.loads(numbers.read_text())) == page.read_text()
