"""The table of docs/real-size.md is what the benchmark makes of its committed numbers; 1,000 clients stay below 2 GiB."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_table_in_the_docs_is_that_of_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    table = runpy.run_path(str(ROOT / "benchmarks" / "frozen.py"))["table"]
    sys.modules.pop("timing", None)
    found = json.loads((ROOT / "benchmarks" / "frozen.json").read_text())
    assert table(found) in (ROOT / "docs" / "real-size.md").read_text()
    (many,) = [record for record in found["records"] if record["clients"] == 1000]
    assert many["peak"] < 2 * 2**30
    assert many["frozen"] > 9.9e6
