"""docs/methods.md says what the code does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedkin import Federation, FedkinError, algorithms, train
from fedkin.algorithm import Algorithm

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
NAMES = [
    *("fedavg", "fedprox", "fedbn", "scaffold", "afl", "global", "oracle", "perfedavg", "pfedme"),
    *("ditto", "apfl", "fedper", "fedrep", "fedamp", "pfedbayes", "mocha"),
    *("pfedgraph", "fedfomo", "feddbe", "fedala", "mrmtl", "fedbabu", "fedrod", "lgfedavg", "fedproto", "cfl"),
    *("networklasso", "knnper", "kin"),
]


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_on_the_page_with_its_default(name: str) -> None:
    text = PAGE.read_text()
    heading = next(line for line in text.splitlines() if line.startswith("### ") and f"`{name}`" in line)
    section = text.split(heading)[1].split("\n### ")[0]
    for key, info in algorithms.get(name).model_fields.items():
        if name != "fedavg" and key.startswith("server_"):
            continue  # the server's step stands under FedAvg, once
        if key not in Algorithm.model_fields or info.default != Algorithm.model_fields[key].default:
            assert f"`{key}={info.default}`" in section, f"{name}.{key}={info.default}"


def test_the_table_has_every_method() -> None:
    assert [name for name in algorithms.names() if f"| `{name}` |" not in PAGE.read_text()] == []


def test_the_table_says_what_each_method_deploys() -> None:
    words = {"received": "received", "trained": "trained", "validated": "by validation loss"}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 4 and cells[2].startswith("`"):
            method = algorithms.get(cells[2].strip("`"))
            assert cells[1] == method.title
            assert cells[4].startswith(words[method.deploys]), method.name


CLIENTS, CLASSES, FEATURES = 8, 3, 16
PARAMETERS = 40 * FEATURES + FEATURES + FEATURES * CLASSES + CLASSES
BYTES = {
    **{text: (float(text), 0.06) for text in ("0", "1", "1.5", "2")},
    "1 (1.5)": (1.0, 0.06),
    "1, and 30 models in a run": (1.0, 0.06),
    "(p + 1)/2": (2.5, 0.06),
    "(M + 2)/2": (3.5, 0.06),
    "C·d/P": (CLASSES * FEATURES / PARAMETERS, 0.02),
    "< 1": (0.95, 0.06),
    "≪ 1": (CLASSES * (FEATURES + 1) / PARAMETERS, 0.02),
}
"""What the last column comes to with p = 4 clusters and M = 5 peers, and how much else may travel (losses, counts)."""


def bytes_of_a_round(name: str, federation: Federation) -> int:
    """Of the fifth of nine: neither what is sent once nor one of Kin's stages."""
    model = "mlr" if name == "mocha" else "feature-mlp:16"
    method = algorithms.make(name, {"epochs": 1})
    rounds = train(federation, model, method, rounds=9, eval_every=9, seed=0).history.records
    return int(rounds[4]["bytes"] - rounds[3]["bytes"])


@pytest.mark.slow
def test_the_table_says_how_many_bytes_travel() -> None:
    rng = np.random.default_rng(0)
    clients = {f"c{k}": (rng.normal(size=(30, 40)), np.arange(30) % CLASSES) for k in range(CLIENTS)}
    federation = Federation.from_arrays(clients, classes=list(range(CLASSES)))
    one = {model: 2 * CLIENTS * 4 * size for model, size in (("mlr", 41 * CLASSES), ("mlp", PARAMETERS))}
    seen = 0
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 8 or not cells[2].startswith("`") or cells[6] not in BYTES:
            continue
        name = cells[2].strip("`")
        wanted, slack = BYTES[cells[6]]
        try:
            found = bytes_of_a_round(name, federation) / one["mlr" if name == "mocha" else "mlp"]
        except FedkinError:
            assert name == "oracle"
            continue
        if cells[6] == "< 1" and name == "fedbn":
            continue  # no batch norm here
        assert found == pytest.approx(wanted, abs=slack * max(1, wanted)), name
        seen += 1
    assert seen >= 30


def test_times_on_the_page_are_those_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    root = PAGE.parents[1]
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    import rounds

    facts = json.loads((root / "benchmarks" / "rounds.json").read_text())
    assert f"{rounds.BEGIN}\n{rounds.told(facts)}\n{rounds.END}" in PAGE.read_text()
