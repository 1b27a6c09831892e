"""The page about networks at their defaults compares on folds that did not choose, and the sweep sees no test sample."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("networks", "defaults"):
        sys.modules.pop(name, None)
    found = importlib.import_module("networks")
    monkeypatch.setattr(found, "SETTINGS", ({}, {"lr": 0.01}))
    return found


def records(networks: Any, pair: tuple[str, str], *tried: Any) -> list[dict[str, Any]]:
    """Of each setting its points in three folds and its early losses there."""
    told = {"set": pair[0], "network": pair[1], "rounds": 50}
    settings = zip(networks.SETTINGS, tried)
    return [told | {"settings": setting, "points": points, "early": early} for setting, (points, early) in settings]


def test_pairs_within_a_point_are_counted(networks: Any) -> None:
    near = records(networks, ("digits", "mlr"), ([90, 90, 90], [2, 2, 2]), ([90.5, 90.5, 90.5], [3, 3, 3]))
    far = records(networks, ("heart", "mlp"), ([80, 80, 80], [2, 2, 2]), ([83, 83, 84], [1, 1, 1]))
    broken = records(networks, ("school", "linear"), (None, None), ([20, 20, 20], [1, 1, 1]))
    unfinished = records(networks, ("school", "mlp"), ([20, 20, 20], [1, 1, 1]))
    hopeless = records(networks, ("clusters", "mlp"), ([0, 0, 0], [9, 9, 9]), (None, None))
    page = networks.page({"records": near + far + broken + unfinished + hopeless})
    assert "**The default is within a point of tuned in 1 of 3 pairs**" in page
    assert "mlp on heart (3.3); linear on school (1020.0)" in page
    assert "| heart | mlp | 80.0 | 83.3 | +3.3 | +0.0 | lr=0.01 |" in page
    assert "| digits | mlr | 90.0 | 90.5 | +0.5 | +0.5 | lr=0.01 |" in page, "the range test took the default"
    assert "| school | mlp |" not in page
    assert "Left out, because training alone learns nothing there with any setting: mlp on clusters." in page
    assert "Not tried: of the sets digits, Dir(0.1), digits, Dir(1), HAR, people, WISDM, Vehicle," in page
    assert "; of the networks zero-mlr, bn-mlp, feature-mlp, " in page


def test_a_setting_that_is_best_by_chance_on_one_fold_gains_nothing(networks: Any) -> None:
    by_chance = np.array([[80.0, 80.0, 80.0], [86.0, 77.0, 77.0]])
    gain, picks = networks.turns(by_chance, by_chance)
    assert picks == [1, 0, 0]
    assert gain == pytest.approx(-1.0), "chosen by the first fold, compared on the others"


def test_a_pair_is_tried_once_and_only_on_training_samples(
    networks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(networks.SETS, "tiny", {"name": "digits", "clients": 3})
    assert networks.clients("tiny").test.sizes.sum() == 0
    path = tmp_path / "networks.json"
    first = networks.sweep(path, ["tiny"], ["mlr", "lstm-text"], 5)["records"]
    assert [(record["network"], record["settings"]) for record in first] == [("mlr", {}), ("mlr", {"lr": 0.01})]
    assert all(len(record["points"]) == len(record["early"]) == 3 for record in first)
    assert all(0 < fold <= 100 for record in first for fold in record["points"])
    assert first[0]["early"] != first[1]["early"]
    monkeypatch.setattr(networks, "points", lambda *asked: pytest.fail("tried again"))
    assert networks.sweep(path, ["tiny"], ["mlr"], 5)["records"] == json.loads(path.read_text())["records"]
