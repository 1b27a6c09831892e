"""Newcomers that are added to the run: for those that come next they are clients like any others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import fedkin
from fedkin import Federation, FedkinError
from fedkin.cli import app

from .conftest import sites


def test_a_run_grows_by_its_newcomers_and_the_next_has_them_as_kin(tmp_path: Path) -> None:
    """Three kinds of clients, of which the run has two: who comes last finds its kin among those that came before it."""
    federation = sites(groups=3, clients=12, seed=1)
    kind = np.arange(12) % 3
    result = fedkin.auto(federation.take(np.flatnonzero(kind < 2)), "mlr", effort="quick", rounds=10, lr=0.3)
    third = np.flatnonzero(kind == 2)
    joined = result.join(federation.take(third[:3]))
    grown = result.grown(joined)
    assert grown.names == (*result.names, *joined.names)
    grown.save(tmp_path / "run")
    again = fedkin.load(tmp_path / "run")
    x = torch.randn(5, 6)
    for one in (result, joined):
        for name in one.names:
            assert torch.allclose(again.models[name](x), one.models[name](x), atol=1e-6)
            assert again.auto[name]["members"] == pytest.approx(dict(one.auto[name]["members"]))
    kin = again.kin
    assert kin.shape == (11, 11)
    assert np.allclose(kin.sum(axis=1), 1)
    assert np.allclose(kin[:8, :8], result.kin)
    assert (kin[:, 8:] == 0).all()  # nobody has been helped by a newcomer yet
    assert again.metrics["deployed"]["test_accuracy"][8:] == joined.metrics["deployed"]["test_accuracy"]
    last = again.join(federation.take(third[3:]))
    shares = last.extras["kin_of_peers"].numpy()[0]
    assert shares[8:].sum() > 0.8
    with pytest.raises(FedkinError, match="joined another run"):
        result.grown(last)
    with pytest.raises(FedkinError, match="part of the run already"):
        again.join(federation.take(third[:1]))


def test_the_command_adds_newcomers_of_a_table(tmp_path: Path) -> None:
    def table(names: list[str], seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(40 * len(names), 3))
        y = np.where(x[:, 0] + 0.3 * rng.normal(size=len(x)) > 0, "yes", "no")
        return pd.DataFrame(x, columns=["a", "b", "c"]).assign(died=y, hospital=np.repeat(names, 40))

    table(["north", "south", "east"], 0).to_csv(tmp_path / "old.csv", index=False)
    table(["west"], 1).to_csv(tmp_path / "new.csv", index=False)
    run, columns = str(tmp_path / "run"), ["--client", "hospital", "--target", "died"]
    how = ["--csv", str(tmp_path / "old.csv"), *columns, "--model", "mlr", "--effort", "quick", "--rounds", "3"]
    done = CliRunner().invoke(app, ["auto", *how, "--out", run])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(
        app, ["join", run, "--csv", str(tmp_path / "new.csv"), "--add", "--out", str(tmp_path / "joined")]
    )
    assert done.exit_code == 0, done.output
    assert "added to" in done.output
    assert fedkin.load(run).names == ("east", "north", "south", "west")
    assert fedkin.load(tmp_path / "joined").names == ("west",)
    again = CliRunner().invoke(app, ["join", run, "--csv", str(tmp_path / "new.csv"), "--out", str(tmp_path / "twice")])
    assert again.exit_code != 0
    assert "part of the run already" in " ".join(again.output.split())


def test_only_auto_takes_newcomers() -> None:
    federation: Federation = sites(clients=4)
    result = fedkin.train(federation, "mlr", fedkin.algorithms.FedAvg(), rounds=1)
    with pytest.raises(FedkinError, match="has nothing for newcomers"):
        result.join(sites(clients=2, seed=3))
