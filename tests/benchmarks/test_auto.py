"""The benchmark of auto: who is harmed, and the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark_of_auto(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import importlib

    for name in ("auto", "auto_cases", "auto_page"):
        sys.modules.pop(name, None)
    return importlib.import_module("auto")


def test_a_client_is_harmed_only_where_chance_is_no_excuse(benchmark_of_auto: Any) -> None:
    worse = benchmark_of_auto.significantly_worse
    right, wrong = np.ones(20), np.zeros(20)
    assert worse(wrong, right, True)
    assert not worse(right, wrong, True)
    assert not worse(right, right, True)
    few = np.concatenate([np.zeros(3), np.ones(17)])
    assert not worse(few, right, True)  # 0 of 3 changes for the better: p = 1/16
    rng = np.random.default_rng(0)
    errors = -rng.random(50)
    assert worse(errors - 0.5 - 0.1 * rng.random(50), errors, False)
    assert not worse(errors, errors, False)


def test_the_page_has_a_row_per_finished_federation_and_keeps_its_text(benchmark_of_auto: Any, tmp_path: Path) -> None:
    from auto_page import BEGIN, END, FIXED, written

    own = {"mean": 0.9, "worst5": 0.8, "worse": 0, "worse_both": 0, "cpu": 1.0, "bytes": 10}
    fixed = {name: own | {"mean": 0.85, "pre_mean": 0.86, "pre_worst5": 0.7} for name in FIXED}
    late = {"clients": 3, "local": 0.8, "joined": 0.9, "worse": 0, "worse_both": 0, "floor": 0}
    methods = {
        "local": own | {"mean": 0.8},
        "local, another seed": own,
        "auto quick": own,
        "auto standard": own,
        **fixed,
    }
    told = {"clients": 20, "metric": "accuracy", "methods": methods, "newcomers": late}
    record = {"case": "made up", "seed": 0, "ways": {}, **told}
    half = {**record, "case": "killed half-way"}
    del half["newcomers"]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    behind = {**methods, "auto standard": own | {"mean": 0.8}}
    two = [{"case": "two seeds", "seed": 0, "ways": {}, **told}]
    two.append({**two[0], "seed": 1, "methods": behind})
    written(page, [record, half, *two])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "killed half-way" not in text
    assert "received 86.0/70.0" in text
    assert "| made up | +4 ✓ | +0 ✓ | 0 of 20 ✓ |" in text
    assert (
        "| two seeds | −1 (± 7.1 over seeds) ✓ | +0 ✓ | 0 of 20 ✓ |" in text
    )  # +4 and −6: level within their deviation
    assert "Of 2 federations" in text
