"""The page about networks at their defaults counts what the JSON holds, and the sweep sees no test sample."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("networks", "defaults"):
        sys.modules.pop(name, None)
    return importlib.import_module("networks")


def records(networks: Any, pair: tuple[str, str], *points: float | None) -> list[dict[str, Any]]:
    told = {"set": pair[0], "network": pair[1], "rounds": 50}
    return [told | {"settings": settings, "points": found} for settings, found in zip(networks.SETTINGS, points)]


def test_pairs_within_a_point_are_counted(networks: Any) -> None:
    near = records(networks, ("digits", "mlr"), 90.0, 90.5, None, 80.0, 89.0)
    far = records(networks, ("heart", "mlp"), 80.0, 83.25, 81.0, 79.0, 78.0)
    broken = records(networks, ("school", "linear"), None, 20.0, None, 19.0, 18.0)
    unfinished = records(networks, ("school", "mlp"), 20.0, 21.0)
    page = networks.page({"records": near + far + broken + unfinished})
    assert "**Within a point: 1 of 3 pairs.** Further away: mlp on heart (3.2); linear on school (inf)." in page
    assert "| heart | mlp | 80.0 | 83.2 | 81.0 | 79.0 | 78.0 | 3.2 | lr=0.01 |" in page
    assert "mlp | 20.0" not in page


def test_a_pair_is_tried_once_and_only_on_training_samples(
    networks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(networks.FEDERATIONS, "tiny", {"name": "digits", "clients": 3})
    assert networks.clients("tiny").test.sizes.sum() == 0
    monkeypatch.setattr(networks, "SETTINGS", ({}, {"lr": 0.01}))
    path = tmp_path / "networks.json"
    first = networks.sweep(path, ["tiny"], ["mlr", "lstm-text"], 2)["records"]
    assert [(record["network"], record["settings"]) for record in first] == [("mlr", {}), ("mlr", {"lr": 0.01})]
    assert all(0 < record["points"] <= 100 for record in first)
    monkeypatch.setattr(networks, "points", lambda *asked: pytest.fail("tried again"))
    assert networks.sweep(path, ["tiny"], ["mlr"], 2)["records"] == json.loads(path.read_text())["records"]
