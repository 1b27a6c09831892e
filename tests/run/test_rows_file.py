"""Rows in a file are the rows in memory, number by number; nothing that is not theirs is written over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin import run as runs
from fedkin.algorithms import FedAvg, FedU
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph, knn
from fedkin.result import Result
from fedkin.run.callbacks import Callback
from fedkin.run.rows_file import RowsFile, slices


def sites(clients: int = 12) -> tuple[Federation, ClientGraph]:
    rng = np.random.default_rng(0)
    data = {f"site-{k}": (rng.normal(size=(12, 4)), rng.integers(0, 3, 12)) for k in range(clients)}
    federation = Federation.from_arrays(data, classes=[0, 1, 2])
    return federation, knn(rng.random((clients, 2)), 3, federation.names)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were little memory: clients are evaluated a few at a time."""
    monkeypatch.setattr("fedkin.run.loop.ASK_LIMIT", 100)
    monkeypatch.setattr("fedkin.run.rows_file.CHUNK", 400)


def trained(neighbours: str = "sampled", **options: object) -> Result:
    federation, graph = sites()
    method = FedU(eta=0.5, lr=0.1, epochs=2, neighbours=neighbours)  # type: ignore[arg-type]
    settings = {"rounds": 5, "dtype": "float64", "eval_every": 2, **options}
    return fedkin.train(federation, "bn-mlp:4", method, graph, **settings)  # type: ignore[arg-type]


def same(one: Result, other: Result) -> bool:
    pairs = [(one.server_rows, other.server_rows), (one.models.rows, other.models.rows)]  # type: ignore[attr-defined]
    return all(torch.equal(a, b) for a, b in pairs) and one.metrics == other.metrics


@pytest.mark.parametrize("neighbours", ["sampled", "all"])
@pytest.mark.parametrize("fraction", [0.25, 1.0])
def test_the_numbers_are_those_in_memory(
    tmp_path: Path, request: pytest.FixtureRequest, neighbours: str, fraction: float
) -> None:
    at_once = trained(neighbours, fraction=fraction)
    request.getfixturevalue("little")
    memory = trained(neighbours, fraction=fraction)
    path = tmp_path / "rows.bin"
    result = trained(neighbours, fraction=fraction, rows_file=str(path), out=tmp_path / "run")
    assert same(result, memory)
    assert "judging_seconds" in result.facts
    assert not list(tmp_path.glob("*.fold*")), "the rows of the run that judged are gone"
    assert torch.equal(memory.server_rows, at_once.server_rows)
    assert torch.allclose(memory.models.rows, at_once.models.rows, atol=1e-14)  # type: ignore[attr-defined]
    assert np.array_equal(np.memmap(path, np.float64, "r", shape=memory.rows.shape), memory.rows)
    loaded = fedkin.load(tmp_path / "run")
    assert torch.equal(loaded.server_rows, memory.server_rows)
    assert torch.equal(loaded.models.rows, memory.models.rows)  # type: ignore[attr-defined]


class StopAfter(Callback):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round(self, run: runs.Run, record: dict[str, object]) -> bool:
        return record["round"] == self.rounds


def test_a_resumed_run_writes_its_rows_again(tmp_path: Path) -> None:
    whole = trained(fraction=0.25)
    path, out = tmp_path / "rows.bin", tmp_path / "run"
    trained(fraction=0.25, rows_file=str(path), out=out, callbacks=[StopAfter(3)])
    path.write_bytes(bytes(path.stat().st_size))  # what it held is in the checkpoint
    with pytest.raises(FedkinError, match="names a rows file outside of itself"):
        fedkin.resume(out, sites()[0], "bn-mlp:4")
    assert same(fedkin.resume(out, sites()[0], "bn-mlp:4", rows_file=path), whole)
    assert [record["round"] for record in fedkin.load(out, "bn-mlp:4").history] == [1, 2, 3, 4, 5]


def test_only_the_cohort_is_written(tmp_path: Path) -> None:
    federation, graph = sites()
    options = runs.make_options(rounds=1, cohort=3, rows_file=str(tmp_path / "rows.bin"))
    run = runs.make_run(federation, "mlr", FedU(lr=0.1), options, graph)
    before = run.state.rows.clone()
    cohort = np.array([1, 4, 7])
    after = run.algorithm.round(run.state, run.clients, cohort, run.setting)
    assert after.rows.data_ptr() == run.state.rows.data_ptr()
    assert after.changed is not None
    assert after.changed.tolist() == cohort.tolist()
    assert (after.rows != before).any(dim=1).nonzero().ravel().tolist() == cohort.tolist()
    run.clients.close()


def test_outside_a_run_states_stay_as_they_are() -> None:
    federation, graph = sites()
    run = runs.make_run(federation, "mlr", FedU(lr=0.1), runs.make_options(rounds=1), graph)
    start = FedU(lr=0.1).start(run.setting)
    for cohort in (np.array([0, 2]), np.arange(12)):
        before = start.rows.clone()
        after = run.algorithm.round(start, run.clients, cohort, run.setting)
        assert torch.equal(start.rows, before)
        assert not torch.equal(after.rows, before)
    run.clients.close()


def test_methods_that_make_new_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=r"rows_file: fedavg makes new rows in every round; .*: fedu"):
        fedkin.train(sites()[0], "mlr", FedAvg(), rounds=1, rows_file=str(tmp_path / "rows.bin"))
    assert not (tmp_path / "rows.bin").exists()


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("precious")
    with pytest.raises(FedkinError, match=r"table\.csv exists and is none of 2 rows of 3"):
        RowsFile(path, (2, 3), torch.float32)
    assert path.read_text() == "precious"
    with pytest.raises(FedkinError, match="exists and is none"):
        RowsFile(tmp_path, (2, 3), torch.float32)


def test_what_is_written_outlives_its_pages(tmp_path: Path) -> None:
    file = RowsFile(tmp_path / "new" / "rows.bin", (50, 3), torch.float64)
    file.fill(torch.arange(3.0).expand(50, -1))
    file.rows[7] = -1
    file.release()
    assert file.rows[7].tolist() == [-1, -1, -1]
    assert file.rows[8].tolist() == [0, 1, 2]
    with pytest.raises(FedkinError, match=r"rows.bin is in use by process \d+ on "):
        RowsFile(file.path, (50, 3), torch.float64)
    file.close()
    again = RowsFile(file.path, (50, 3), torch.float64)
    assert torch.equal(again.rows, file.rows)
    assert "50 rows of 3" in repr(again)


def test_slices_cover_all_rows_once() -> None:
    rows = torch.zeros(1000, 2**16)
    covered = np.concatenate([np.arange(1000)[some] for some in slices(rows)])
    assert covered.tolist() == list(range(1000))
    assert max(some.stop - some.start for some in slices(rows)) * 2**18 <= 2**26
