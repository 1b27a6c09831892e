"""The table of docs/benchmarks.md is what the benchmark makes of its committed numbers, and the promised ratios stand in them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_table_in_the_docs_is_that_of_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = runpy.run_path(str(ROOT / "benchmarks" / "local_training.py"))["table"]
    sys.modules.pop("timing", None)
    records = json.loads((ROOT / "benchmarks" / "local_training.json").read_text())["records"]
    assert table(records) in (ROOT / "docs" / "benchmarks.md").read_text()
    found = {record["model"]: record for record in records}
    assert found["MLP, Adam"]["times_sgd"] <= 1.6
    assert found["dropout"]["times_the_loop"] >= 3
    assert found["dropout"]["times_a_process_per_core"] >= 1.5
    assert found["GRU"]["times_a_process_per_core"] >= 1.5
