"""The table of docs/learning.md is what the benchmark makes of its committed numbers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_in_the_docs_is_that_of_the_numbers() -> None:
    found = json.loads((ROOT / "benchmarks" / "metrics_choice.json").read_text())
    table = runpy.run_path(str(ROOT / "benchmarks" / "metrics_choice.py"))["table"]
    assert table(found) in (ROOT / "docs" / "learning.md").read_text()


def test_equals_are_decided_by_the_order_of_the_list() -> None:
    chosen = runpy.run_path(str(ROOT / "benchmarks" / "metrics_choice.py"))["chosen"]
    lines = {name: {"validation_auroc": [value, value]} for name, value in (("a", 0.5), ("b", 0.75), ("c", 0.75))}
    assert chosen(lines, "auroc") == ("b", 0.0, 0.0)


def test_a_lead_is_told_with_its_standard_error_over_seeds() -> None:
    chosen = runpy.run_path(str(ROOT / "benchmarks" / "metrics_choice.py"))["chosen"]
    lines = {"a": {"validation_auroc": [0.5, 0.75]}, "b": {"validation_auroc": [0.75, 1.5]}}
    assert chosen(lines, "auroc") == ("b", 0.5, 0.25)  # leads 0.25 and 0.75
