"""Inputs that once ended in a traceback, by name; `campaign.inputs` draws thousands like them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedkin
from fedkin import Federation
from fedkin.config import settle
from fedkin.data.tabular import from_csv
from fedkin.errors import FedkinError
from fedkin.testing import uneven_federation

X, Y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
TEXT = np.where(Y, "yes", "no")


def table(folder: Path, text: str) -> Any:
    (folder / "t.csv").write_text(text)
    return from_csv(folder / "t.csv", "client", "y")


def parquet(folder: Path) -> Any:
    path = folder / "t.parquet"
    pd.DataFrame({"client": ["a", "b"] * 4, "x": range(8), "y": [0, 0, 1, 1] * 2}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    return from_csv(path, "client", "y")


def federation(x: Any = X, y: Any = Y, **options: Any) -> Federation:
    return Federation.from_arrays({"a": (X, Y), "b": (x, y)} if y is not TEXT else {"a": (x, y)}, **options)


NAMED: dict[str, Callable[[Path], Any]] = {
    "header only": lambda folder: table(folder, "client,x,y\n"),
    "header without line end": lambda folder: table(folder, "client,x,y"),
    "NaN as test fraction": lambda folder: federation(test_fraction=float("nan")),
    "NaN as validation fraction": lambda folder: federation(validation_fraction=float("nan")),
    "integer classes for text": lambda folder: federation(y=TEXT, classes=[0, 1]),
    "mixed labels": lambda folder: federation(y=np.array([0, "a"] * 10, dtype=object)),
    "labels and None": lambda folder: federation(y=np.array([0, None] * 10, dtype=object)),
    "ragged lists": lambda folder: federation(x=[[1.0], [1.0, 2.0]] * 10),
    "a damaged Parquet file": parquet,
    "a list as name of data": lambda folder: settle([{"data": {"name": [1]}}]),
    "a truth value as batch size": lambda folder: fedkin.algorithms.make("fedavg", {"batch_size": True}),
}


@pytest.mark.parametrize("name", NAMED)
def test_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(FedkinError) as problem:
        NAMED[name](tmp_path)
    assert "\n" not in str(problem.value).strip()


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    out = tmp_path / "finished"
    fedkin.train(uneven_federation(), "mlr", "fedu", "complete", rounds=2, out=out)
    return out


CRAFTED = {
    "history of numbers": ("history.jsonl", "3\n"),
    "history of lists": ("history.jsonl", "[]\n[]\n"),
    "history without rounds": ("history.jsonl", '{"seconds": 1}\n'),
    "history with a text as round": ("history.jsonl", '{"round": "x", "log": {}}\n'),
    "result that is a list": ("result.json", "[]"),
    "result without facts": ("result.json", "{}"),
    "config without sections": ("config.toml", "x = 1\n"),
    "config of other kinds": ("config.toml", "run = 3\nmodel = [1]\nalgorithm = true\ndata = 1\n"),
    "config that is no TOML": ("config.toml", "= ="),
}


def take_up(out: Path, accept: bool) -> Any:
    return fedkin.resume(out, uneven_federation(), rounds=3, accept_changes=accept)


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.parametrize("accept", [False, True])
def test_a_crafted_directory_is_refused_in_one_line(name: str, accept: bool, finished: Path, tmp_path: Path) -> None:
    """Accepted or not: changes that were accepted are still read as a stranger's. A resumed run needs no result."""
    file, content = CRAFTED[name]
    out = Path(shutil.copytree(finished, tmp_path / "run"))
    (out / file).write_text(content)
    with pytest.raises(FedkinError) as problem:
        fedkin.load(out, accept_changes=accept)
    assert "\n" not in str(problem.value).strip()
    if file == "result.json":
        assert np.array_equal(take_up(out, accept).rows, take_up(finished, accept).rows)
        return
    with pytest.raises(FedkinError) as problem:
        take_up(out, accept)
    assert "\n" not in str(problem.value).strip()


@pytest.mark.parametrize("file", ["result.json", "config.toml", "history.jsonl"])
def test_a_pipe_in_a_directory_does_not_block(file: str, finished: Path, tmp_path: Path) -> None:
    for path in finished.glob("*"):
        if path.is_file() and path.name != file:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    os.mkfifo(tmp_path / file)
    with pytest.raises(FedkinError):
        fedkin.load(tmp_path)
