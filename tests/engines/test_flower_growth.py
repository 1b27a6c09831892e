"""A site that comes, a site that leaves: the next run begins from the last, and the others' private state is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

import fedkin
from fedkin.cli import app
from fedkin.deployment.server import FederationFile, train_sites

from ..contract import test_every_method as contract
from . import sites

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")


def plan(folder: Path, count: int, algorithm: str, rounds: int) -> FederationFile:
    sections = {
        "federation": {"sites": count, "wait": 1, "classes": [0, 1, 2]},
        "model": {"name": "bn-mlp:6"},
        "algorithm": {"name": algorithm},
        "run": {"rounds": rounds, "dtype": "float64", "checkpoint_every": 1},
    }
    path = folder / f"{algorithm}-{count}-{rounds}.toml"
    path.write_text(tomli_w.dumps(sections))
    return FederationFile.read(path)


def test_a_third_site_comes_and_the_first_leaves(tmp_path: Path) -> None:
    federation = contract.make_federation()
    paths = sites.write_sites(federation, tmp_path, [(0, 2), (1,), (3, 4)])
    first = train_sites(sites.LoopLine(paths[:2]), plan(tmp_path, 2, "local", 2), tmp_path / "a")
    grown = train_sites(sites.LoopLine(paths), plan(tmp_path, 3, "local", 0), tmp_path / "b", start=tmp_path / "a")
    assert len(grown.names) == 5
    assert any("the mean row for 2 newcomers" in note for note in grown.notes)
    for name in first.names:  # every tensor of Local is private: it was on the site's disk alone
        mine, theirs = grown.models[name].state_dict(), first.models[name].state_dict()
        assert all(np.allclose(mine[key], value) for key, value in theirs.items())
    left = train_sites(sites.LoopLine(paths[1:]), plan(tmp_path, 2, "local", 1), tmp_path / "c", start=tmp_path / "b")
    assert set(left.names) == {federation.names[k] for k in (1, 3, 4)}
    again = train_sites(sites.LoopLine(paths[:2]), plan(tmp_path, 2, "local", 3), tmp_path / "a")
    straight = fedkin.train(federation.take([0, 2, 1]), "bn-mlp:6", "local", rounds=3, dtype="float64")
    order = [again.names.index(name) for name in straight.names]
    assert np.allclose(again.rows[order], straight.rows, atol=1e-9)  # the run it was copied from goes on as if alone


def test_the_graph_of_the_last_run_grows(tmp_path: Path) -> None:
    paths = sites.write_sites(contract.make_federation(), tmp_path, [(0, 2), (1,), (3,)])
    before = train_sites(sites.LoopLine(paths[:2]), plan(tmp_path, 2, "fedpnp", 1), tmp_path / "a")
    with pytest.warns(UserWarning, match="linked to every client evenly"):
        after = train_sites(sites.LoopLine(paths), plan(tmp_path, 3, "fedpnp", 1), tmp_path / "b", start=tmp_path / "a")
    assert before.graph is not None
    assert after.graph is not None
    assert after.graph.n_edges == before.graph.n_edges + len(before.names)


def deploy(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["deploy", *words])
    return done.exit_code, done.output


def test_add_site_and_remove_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLWR_HOME", raising=False)
    folder = tmp_path / "clinics"
    assert deploy("init", str(folder), "--sites", "north,south", "--target", "outcome", "--port", "9392")[0] == 0
    code, text = deploy("add-site", "east", str(folder))
    assert code == 0, text
    assert "flwr supernode register sites/east/key.pub" in text  # the server is not there to be told
    assert "sites/east/start.sh" in text
    assert "then: flwr run . --stream" in text
    assert (folder / "sites" / "east" / "key").stat().st_mode & 0o077 == 0
    assert 'target = "outcome"' in (folder / "sites" / "east" / "site.toml").read_text()
    assert "9395" in (folder / "sites" / "east" / "start.sh").read_text()
    assert FederationFile.read(folder / "server" / "federation.toml").federation.sites == 3
    (folder / "server" / "result").mkdir()
    (folder / "server" / "result" / "result.safetensors").write_text("")
    code, text = deploy("remove-site", "north", str(folder))
    assert code == 0, text
    assert 'out="result-2" start="result"' in text
    assert (folder / "sites" / "north" / "key").exists()
    assert FederationFile.read(folder / "server" / "federation.toml").federation.sites == 2
    for words, reason in (
        (("add-site", "east", str(folder)), "there already"),
        (("add-site", "../x", str(folder)), "letters, digits"),
        (("remove-site", "estern", str(folder)), "unknown site"),
        (("add-site", "x", str(tmp_path)), "holds no federation"),
    ):
        code, text = deploy(*words)
        assert code == 2
        assert reason in text
