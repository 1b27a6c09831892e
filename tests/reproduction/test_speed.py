"""A probe is measured once and remembered; what cannot be remembered is measured again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedkin.reproduction import speed


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[object, ...]]:
    """The probes that were really measured, with an empty cache folder."""
    seen: list[tuple[object, ...]] = []

    def measure(*what: object) -> float:
        seen.append(what)
        return 0.25

    monkeypatch.setenv("FEDKIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(speed, "measure", measure)
    return seen


def anew(model: str = "mlr", data: str = "har", batch_size: int = 8) -> float:
    """As another process would ask."""
    speed.probe.cache_clear()
    found = speed.probe(model, data, batch_size)
    speed.probe.cache_clear()
    return found


def test_a_model_is_measured() -> None:
    for model, data in (("mlr", "har"), ("gru-forecaster:8", "metr-la"), ("lstm-text:8", "shakespeare")):
        assert 0 < speed.measure(model, data, 20) < 0.1
    assert speed.measure("fedpnp-mnist", "har", 20) == 0, "it takes images only"


def test_a_second_process_reads_what_the_first_measured(
    measured: list[tuple[object, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert anew() == anew() == 0.25
    assert measured == [("mlr", "har", 8)]
    (file,) = (tmp_path / "cache" / ".speed").iterdir()
    assert json.loads(file.read_text()) == {"model": "mlr", "data": "har", "batch_size": 8, "seconds": 0.25}
    anew(batch_size=16)
    monkeypatch.setattr(speed, "_kernels", lambda: "faster")
    anew()
    assert len(measured) == 3
    assert anew(data="digits") == 0
    assert len(measured) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"seconds": "quick"}'])
def test_a_damaged_file_is_measured_again(measured: list[tuple[object, ...]], tmp_path: Path, content: str) -> None:
    anew()
    (file,) = (tmp_path / "cache" / ".speed").iterdir()
    file.write_text(content)
    assert anew() == 0.25
    assert len(measured) == 2
    assert json.loads(file.read_text())["seconds"] == 0.25


def test_a_cache_that_cannot_be_written_is_no_fault(measured: list[tuple[object, ...]], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert anew() == anew() == 0.25
    assert len(measured) == 2
