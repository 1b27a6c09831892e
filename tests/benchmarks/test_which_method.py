"""The page "which method when" is what its generator makes of the committed cells."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedkin import Federation

ROOT = Path(__file__).parents[2]
NAMES = ("auto", "auto_cases", "auto_page", "which_method", "which_method_page")


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in NAMES:
        sys.modules.pop(name, None)
    return importlib.import_module("which_method")


@pytest.fixture
def cells(generator: Any) -> list[dict[str, Any]]:
    methods = ["local", "fedavg", "fedavgft", "mocha", "auto"]
    found = generator.missing([], ["digits, Dir(1)"], methods, seeds=2, rounds=2)
    return [json.loads(json.dumps(cell)) for cell in found]


def test_a_small_study_becomes_a_page_and_is_not_done_twice(generator: Any, cells: list[dict[str, Any]]) -> None:
    assert [(cell["seed"], cell["method"]) for cell in cells[:4]] == [(0, "local"), (0, "fedavg"), (0, "fedavgft"), (0, "mocha")]  # fmt: skip
    assert list(generator.missing(cells, [""], ["local", "auto"], seeds=0)) == []
    page = generator.page(cells)
    assert "**Seeds computed: 2.**" in page
    assert "MOCHA: mocha trains convex models only" in page
    mean = np.mean([cell["mean"] for cell in cells if cell["method"] == "fedavgft"])
    assert f"| FedAvg + fine-tuning | {100 * mean:.1f} |" in page
    assert "**Seeds computed: 2 (auto in all cases: 1).**" in generator.page(cells[:-1])
    assert "**Seeds computed: 1.**" in generator.page(cells[:-2])  # a seed that lacks a method does not count


def test_what_is_chosen_is_chosen_on_training_samples(generator: Any) -> None:
    case = next(case for case in generator.CASES if case.name == "digits, Dir(1)")
    whole = case.make(0)
    held = generator.without_a_quarter(whole, 0)
    assert held.names == whole.names
    assert held.validation.sizes.sum() == 0
    for k in range(len(whole)):
        own = {row.tobytes() for row in np.asarray(whole.train[k][0])}
        assert {row.tobytes() for part in (held.train, held.test) for row in np.asarray(part[k][0])} <= own
    assert (held.train.sizes + held.test.sizes == whole.train.sizes).all()


def test_harm_is_counted_against_two_locals(generator: Any, cells: list[dict[str, Any]]) -> None:
    for cell in cells:
        if "mean" in cell:
            assert 0 <= cell["worse_both"] <= cell["worse"] <= 20
    local = cells[0]
    assert (local["worse"], local["clients"], local["metric"]) == (0, 20, "accuracy")
    assert local["floor"] >= 0


def test_the_committed_page_belongs_to_the_committed_cells(generator: Any) -> None:
    numbers, page = ROOT / "benchmarks" / "which_method.jsonl", ROOT / "docs" / "which-method.md"
    checked = generator.read(numbers.with_name("which_method_verified.jsonl"))
    assert generator.page(generator.read(numbers), checked) == page.read_text()


def test_a_sample_takes_methods_and_cases_evenly(generator: Any) -> None:
    cells = generator.read(ROOT / "benchmarks" / "which_method.jsonl")
    taken = generator.sampled(cells, 100)
    assert taken == generator.sampled(cells[::-1], 100)
    for key in ("method", "case"):
        counts = Counter(cell[key] for cell in taken)
        assert max(counts.values()) - min(counts.values()) <= 1
    assert not {"auto", "mocha", "oracle"} & {cell["method"] for cell in taken}
    assert len({(cell["case"], cell["seed"]) for cell in taken}) <= 20  # Local's two trainings are shared


def test_cells_computed_again_are_compared_with_the_kept_ones(generator: Any, cells: list[dict[str, Any]]) -> None:
    older = [{key: value for key, value in cell.items() if key != "commit"} for cell in cells]
    other = next(cell for cell in older if cell["method"] == "fedavgft" and cell["seed"] == 1)
    other["mean"] += 0.01
    told = list(generator.verified(older, [""], 6, rounds=2))
    assert {(each["method"], each["seed"]): each["agrees"] for each in told} == {
        (name, seed): (name, seed) != ("fedavgft", 1) for name in ("local", "fedavg", "fedavgft") for seed in (0, 1)
    }
    page = generator.page(older, told)
    assert "A random sample of 6 of the older ones (auto apart" in page
    assert "of those that still stand here 5 of 6 agree" in page
    assert "Those that differ: FedAvg + fine-tuning 1 of 2." in page
    assert "| FedAvg + fine-tuning† |" in page
    assert "†" not in generator.page(cells, told)
    anew = [cell | {"commit": "abc"} if cell["method"] == "fedavgft" else cell for cell in older]
    assert "4 of 4 agree (same" in generator.page(anew, told)
    assert f"{len(cells)} of {len(cells)} cells tell the commit that made them" in generator.page(cells, told)


def test_a_cell_that_is_computed_again_takes_the_place_of_the_old(generator: Any, cells: list[dict[str, Any]]) -> None:
    anew = cells[1] | {"mean": 0.5}
    assert generator.replaced([*cells, anew]) == [cells[0], anew, *cells[2:]]


def test_hospitals_are_judged_by_auroc(generator: Any) -> None:
    case = next(case for case in generator.CASES if "heart" in case.name)
    bench = generator.Bench(replace(case, make=lambda seed: with_auroc()), 0, rounds=1)
    cell = bench.cell("local")
    alone = bench.trained("local", cell["rate"], 0)
    areas = []
    for k, name in enumerate(bench.federation.names):
        x, y = bench.federation.test[k]
        chances = torch.softmax(alone.models[name](torch.tensor(x, dtype=torch.float32)), dim=1)
        areas.append(roc_auc_score(y, chances[:, 1].detach()))
    assert cell["metric"] == "auroc"
    assert cell["mean"] == pytest.approx(np.mean(areas))
    assert (
        generator.page([cell | {"method": name} for name in ("local", "fedavg", "auto")]).count("(heart: AUROC)") == 1
    )


def with_auroc() -> Federation:
    """Three hospitals of made patients, in the form that the study's heart has."""
    rng = np.random.default_rng(0)
    clients = {f"h{k}": (x := rng.normal(size=(40, 4)), (x[:, 0] + rng.normal(size=40) > 1).astype(int)) for k in range(3)}  # fmt: skip
    whole = Federation.from_arrays(clients, classes=[0, 1], test_fraction=0.5)
    return replace(whole, task=replace(whole.task, metrics=("auroc", "accuracy"), headline="auroc"))
