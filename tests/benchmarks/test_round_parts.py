"""The parts of a round are found by the functions that do them: a function that is renamed must not fall out of sight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("script", ["round_parts", "hidden_costs"])
def test_every_watched_function_is_there(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for owner, name, _ in __import__(script).PLACES:
        assert callable(getattr(owner, name, None)), f"{owner} has no {name}"


def test_the_shares_of_a_round_are_those_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import round_parts

    threads = torch.get_num_threads()
    try:
        records = round_parts.measure("logistic regression", 12, 40, 1, 3)
    finally:
        torch.set_num_threads(threads)
    assert [record["method"] for record in records] == list(round_parts.GRAPHS)
    for record in records:
        assert sum(record[part] for part in round_parts.PARTS) == pytest.approx(1)
        assert record["kernel"] > 0.05
        assert record["plan"] > 0
        assert record["blocks"] > 0
        assert 0 < record["outside"] < 1
    assert next(record for record in records if record["method"] == "fedpnp")["coupling"] > 0
