"""A run directory has one owner, notices every change, and never leads out of itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedkin
from fedkin import data
from fedkin.algorithms import FedU
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.files import MANIFEST, Lock
from fedkin.run.callbacks import Callback

FEDKIN = [sys.executable, "-m", "fedkin"]


class StopAfter(Callback):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_round(self, run: Any, record: Any) -> bool:
        return bool(record["round"] == self.rounds)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return data.load("digits", clients=4, seed=0)


@pytest.fixture(scope="module")
def original(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after round 3 of 5."""
    out = tmp_path_factory.mktemp("original") / "run"
    options: dict[str, Any] = {"rounds": 5, "checkpoint_every": 1, "callbacks": [StopAfter(3)]}
    fedkin.train(federation, "mlr", FedU(lr=0.1), "knn:2", out=out, **options)
    return out


@pytest.fixture
def stopped(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("config.toml", "lr = 0.1", "lr = 0.3"),
        ("config.toml", "seed = 0\nfraction", "seed = 1\nfraction"),
        ("config.toml", 'fedkin = "', 'fedkin = "9'),
        ("history.jsonl", '"round": 1', '"round": 2'),
    ],
)
def test_a_changed_file_is_told_and_the_change_can_be_accepted(stopped: Path, file: str, old: str, new: str) -> None:
    edited(stopped / file, old, new)
    with pytest.raises(FedkinError, match=rf"{file} was changed since fedkin wrote it; .*--accept-changes"):
        fedkin.resume(stopped)
    assert fedkin.resume(stopped, accept_changes=True).facts["rounds"] == 5
    fedkin.load(stopped)


def test_a_changed_result_is_told_when_it_is_loaded(stopped: Path) -> None:
    edited(stopped / "result.json", '"finished": true', '"finished": false')
    with pytest.raises(FedkinError, match=r"result\.json was changed"):
        fedkin.load(stopped)
    assert fedkin.load(stopped, accept_changes=True).facts["finished"] is False


def test_a_directory_without_manifest_still_loads_and_resumes(stopped: Path) -> None:
    (stopped / MANIFEST).unlink()
    fedkin.load(stopped)
    fedkin.resume(stopped)
    listed = json.loads((stopped / MANIFEST).read_text())["files"]
    assert {"config.toml", "graph.npz", "history.jsonl", "result.json"} <= set(listed)


def test_only_what_is_in_the_manifest_is_there(stopped: Path) -> None:
    listed = set(json.loads((stopped / MANIFEST).read_text())["files"])
    found = {path.relative_to(stopped).as_posix() for path in stopped.rglob("*") if path.is_file()}
    assert {name for name in found if not name.endswith(".safetensors")} - {MANIFEST} <= listed


def test_another_version_of_fedkin_is_told_and_can_be_accepted(
    stopped: Path, federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedkin.train(federation, "mlr", FedU(lr=0.1), "knn:2", rounds=5)
    made = fedkin.__version__
    monkeypatch.setattr(fedkin, "__version__", "99.1")
    with pytest.raises(FedkinError, match=f"was begun by fedkin '{made}', this is 99.1.*--accept-changes") as told:
        fedkin.resume(stopped)
    assert "\n" not in str(told.value)
    assert np.array_equal(fedkin.resume(stopped, accept_changes=True).rows, whole.rows)
    assert fedkin.load(stopped).config["versions"]["fedkin"] == "99.1"


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive at all"])
def test_a_damaged_graph_is_one_line_and_no_interruption(stopped: Path, content: bytes) -> None:
    (stopped / "graph.npz").write_bytes(content)
    done = subprocess.run([*FEDKIN, "resume", str(stopped)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "graph.npz was changed" in done.stderr
    accepted = subprocess.run([*FEDKIN, "resume", str(stopped), "--accept-changes"], capture_output=True, text=True)
    assert accepted.returncode == 2
    assert "graph.npz: not a client graph" in accepted.stderr


def test_leftovers_are_removed_at_the_next_start(stopped: Path) -> None:
    left = [stopped / ".graph.npz.1.part", stopped / "checkpoints" / ".round-000004.safetensors.2.part"]
    for path in left:
        path.write_bytes(b"half")
    fedkin.resume(stopped)
    assert not any(path.exists() for path in left)


def test_a_second_owner_is_refused_in_one_line(stopped: Path) -> None:
    with Lock(stopped / ".lock", "it"):
        done = subprocess.run([*FEDKIN, "resume", str(stopped)], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{stopped} is in use by process {os.getpid()} on" in done.stderr
    assert done.stderr.count("\n") == 1
    assert fedkin.resume(stopped).facts["rounds"] == 5


def test_a_run_that_failed_frees_its_directory(stopped: Path) -> None:
    with pytest.raises(FedkinError, match="other data"):
        fedkin.resume(stopped, data.load("digits", clients=4, seed=1))
    assert not (stopped / ".lock").exists()


def test_a_rows_file_outside_needs_the_flag_again_and_one_inside_moves_with_its_run(
    federation: Federation, tmp_path: Path
) -> None:
    out, moved = tmp_path / "a", tmp_path / "b"
    method, options = FedU(lr=0.1), {"rounds": 3, "callbacks": [StopAfter(2)], "checkpoint_every": 1}
    fedkin.train(federation, "mlr", method, "knn:2", out=out, rows_file=str(out / "rows.bin"), **options)  # type: ignore[arg-type]
    assert 'rows_file = "rows.bin"' in (out / "config.toml").read_text()
    shutil.move(out, moved)
    fedkin.resume(moved)
    assert not out.exists()

    target = tmp_path / "elsewhere.bin"
    for path in (str(target), "../elsewhere.bin"):
        edited(moved / "config.toml", 'rows_file = "rows.bin"', f'rows_file = "{path}"')
        with pytest.raises(FedkinError, match=r"names a rows file outside of itself.*--rows-file"):
            fedkin.resume(moved, rounds=4, accept_changes=True)
        edited(moved / "config.toml", f'rows_file = "{path}"', 'rows_file = "rows.bin"')
    assert not target.exists()


def test_a_ledger_outside_needs_the_flag_again(federation: Federation, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere.jsonl"
    budget = {"epsilon": 500.0, "delta": 1e-5, "noise": 1.0, "ledger": str(elsewhere)}
    options = {"rounds": 3, "callbacks": [StopAfter(2)], "checkpoint_every": 1}
    fedkin.train(federation, "mlr", "fedavg", out=out, privacy=budget, **options)  # type: ignore[arg-type]
    before = elsewhere.read_bytes()
    with pytest.raises(FedkinError, match=r"names a privacy ledger outside of itself.*--ledger"):
        fedkin.resume(out)
    assert elsewhere.read_bytes() == before
    fedkin.resume(out, ledger=elsewhere)
    assert len(elsewhere.read_bytes()) > len(before)


def test_an_address_needs_the_flag_again(stopped: Path) -> None:
    edited(
        stopped / "config.toml",
        'engine = "in_process"',
        'engine = "ray"\nengine_options = {address = "ray://example.org:1"}',
    )
    with pytest.raises(FedkinError, match=r"names a cluster to connect to, ray://example.org:1; .*--ray-address"):
        fedkin.resume(stopped, accept_changes=True)


def test_numbers_after_a_fallback_are_those_of_the_whole_run(federation: Federation, stopped: Path) -> None:
    whole = fedkin.train(federation, "mlr", FedU(lr=0.1), "knn:2", rounds=5)
    (stopped / "checkpoints" / "round-000003.json").write_text("{}")
    assert np.array_equal(fedkin.resume(stopped).rows, whole.rows)
