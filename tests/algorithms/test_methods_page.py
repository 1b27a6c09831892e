"""docs/methods.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedkin import algorithms
from fedkin.algorithm import Algorithm

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
NAMES = [
    *("fedavg", "fedprox", "fedbn", "scaffold", "afl", "global", "oracle", "perfedavg", "pfedme"),
    *("ditto", "apfl", "fedper", "fedrep", "fedamp", "pfedbayes", "mocha"),
    *("pfedgraph", "fedfomo", "feddbe", "fedala", "mrmtl", "fedbabu", "fedrod", "lgfedavg", "fedproto", "cfl"),
    *("networklasso", "knnper"),
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
