"""Trackers by name, against the real packages, without a network."""

from __future__ import annotations

import json
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedkin
from fedkin import data
from fedkin.errors import FedkinError
from fedkin.run.trackers import find_trackers, scalars_of

FEDERATION = data.load("digits", clients=3, seed=0)


def train(track: str, **more: object) -> fedkin.Result:
    return fedkin.train(FEDERATION, "mlr", "fedavg", rounds=2, eval_every=1, track=track, **more)


def wanted(result: fedkin.Result) -> dict[str, float]:
    return scalars_of(result.history.records[-1])


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'fedkin[mlflow]'")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    result = train("mlflow:study")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("study").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.name"] == "fedavg"
    assert run.data.metrics == pytest.approx(wanted(result))
    assert [point.step for point in client.get_metric_history(run.info.run_id, "pre/test_accuracy")] == [1, 2]


def logged(content: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: checksum (4), length (2), type (1: whole, 2 to 4: first, middle, last), data; blocks of 32 KiB."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        if place + 7 + size > len(content):
            return  # the rest is still to come
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""


def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'fedkin[wandb]'")
    from wandb.proto import wandb_internal_pb2

    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    result = train("wandb:study")
    (path,) = tmp_path.rglob("run-*.wandb")
    found, ended, limit = {}, False, time.monotonic() + 60
    while not ended and time.monotonic() < limit:  # a process of W&B's writes it, sometimes a little after `finish`
        for line in logged(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(line)
            ended = ended or record.HasField("exit")
            for item in record.history.item:
                found[item.key or "/".join(item.nested_key)] = item.value_json
        time.sleep(0 if ended else 0.1)
    told = wanted(result)
    assert {key: float(found[key]) for key in told} == pytest.approx(told)


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    pytest.importorskip("trackio", reason="pip install 'fedkin[trackio]'")
    result = train("trackio:study")
    (path,) = (one for one in tmp_path.rglob("*.db"))
    with sqlite3.connect(path) as base:
        rows = base.execute("select step, metrics from metrics order by step").fetchall()
    assert [step for step, _ in rows] == [1, 2]
    told = wanted(result)
    assert {key: json.loads(rows[-1][1])[key] for key in told} == pytest.approx(told)


def test_unknown_and_missing_trackers_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedkinError, match="did you mean 'mlflow'"):
        find_trackers("mlfow")
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(FedkinError, match=r"mlflow is not installed; pip install 'fedkin\[mlflow\]'"):
        train("mlflow")
