"""Raw tables of three sites through a real SuperLink and SuperNodes: as over the same bytes without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from sites import LoopLine

import fedkin
from fedkin.deployment.server import FederationFile, train_sites

from . import processes
from .test_raw_sites import NAMES, clinic, write_dated

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")
pytestmark = [pytest.mark.slow, pytest.mark.engines]

PLAN = {
    "federation": {"sites": 3, "wait": 900, "timeout": 1200, "prepare": True},
    "model": {"name": "mlr"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "run": {"rounds": 2, "dtype": "float64"},
}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[processes.Loopback]:
    def settle(folder: Path) -> None:
        for path in write_dated(tmp_path / "data"):
            shutil.copytree(path.parent, folder / "sites" / path.parent.name, dirs_exist_ok=True)

    with processes.connected(tmp_path, NAMES, settle) as loopback:
        yield loopback


def test_raw_tables_become_inputs_by_one_scheme_on_real_servers(servers: processes.Loopback, tmp_path: Path) -> None:
    settings = servers.folder / "server" / "raw.toml"
    settings.write_text(tomli_w.dumps(PLAN))
    servers.train(settings=settings, out=settings.with_suffix(""))
    cards = [servers.folder / "sites" / name / "models" / f"{name}.json" for name in NAMES]
    processes.wait_until(lambda: all(path.exists() for path in cards), 1800, "the models", servers.logs)
    there = fedkin.load(settings.with_suffix(""))
    here = train_sites(LoopLine(write_dated(tmp_path / "again")), FederationFile.read(settings), tmp_path / "here")
    assert there.names == here.names
    assert json.dumps(there.facts["inputs"]) == json.dumps(here.facts["inputs"])
    assert np.allclose(there.rows, here.rows, atol=1e-9)
    new = clinic(9).assign(admitted="2022-05-01")
    for name, path in zip(NAMES, cards):
        assert json.dumps(json.loads(path.read_text())["inputs"]) == json.dumps(here.facts["inputs"])
        mine, theirs = (fedkin.predict(result, name, new)["probability"] for result in (there, here))
        assert np.allclose(mine, theirs, atol=1e-9)
