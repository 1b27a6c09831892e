"""The table on docs/robustness.md is what its generator makes of the committed numbers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_committed_table_belongs_to_the_committed_numbers() -> None:
    spec = importlib.util.spec_from_file_location("attacks_benchmark", ROOT / "benchmarks" / "attacks.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    facts = json.loads((ROOT / "benchmarks" / "attacks.json").read_text())
    assert generator.table(facts) in (ROOT / "docs" / "robustness.md").read_text()
