"""auto where the data are: over sites that answer from their own disks, with few messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import fedkin
from fedkin import Federation, FedkinError
from fedkin.deployment.server import FederationFile, train_sites

from ..portfolio.conftest import sites as contrary_sites
from . import sites

GROUPS = ((0, 3), (1,), (2, 4, 5))


def plan(folder: Path, **sections: object) -> FederationFile:
    settings = {
        "federation": {"sites": len(GROUPS), "wait": 2, "classes": [0, 1]},
        "model": {"name": "mlr"},
        "algorithm": {"name": "auto", "effort": "quick", "lr": 0.3},
        "run": {"rounds": 3, "seed": 1, "dtype": "float64"},
        **sections,
    }
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(settings))
    return FederationFile.read(path)


@pytest.fixture
def federation() -> Federation:
    return contrary_sites(clients=6)


def test_auto_over_sites_gives_the_models_of_one_machine_with_few_messages(
    federation: Federation, tmp_path: Path
) -> None:
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS, policy=""))
    found = train_sites(line, plan(tmp_path), tmp_path / "out")
    here = fedkin.auto(federation, "mlr", "quick", seed=1, rounds=3, lr=0.3, dtype="float64")
    x = torch.randn(5, 6, dtype=torch.float64)
    for k, name in enumerate(federation.names):
        assert torch.allclose(found.models[name](x), here.models[name](x), atol=1e-9)
        place = found.names.index(name)
        assert found.metrics["deployed"]["test_accuracy"][place] == here.metrics["deployed"]["test_accuracy"][k]
        assert found.auto[name]["members"] == pytest.approx(here.auto[name]["members"], abs=1e-9)
        stored = load_file(next(tmp_path.glob(f"site-*/models/{name}.safetensors")))  # where its data are
        module = found.models[name]
        module.load_state_dict(stored)
        assert torch.allclose(module(x), here.models[name](x), atol=1e-9)
    each = [sum(kind == "answer" for node, kind in line.sent if node == site) for site in range(3)]
    assert max(each) < 60, each  # 2 × 3 rounds; the rest does not grow with the rounds
    assert fedkin.load(tmp_path / "out").auto.keys() == set(federation.names)


def test_a_site_that_comes_later_joins_without_a_round_of_the_others(federation: Federation, tmp_path: Path) -> None:
    paths = sites.write_sites(federation, tmp_path, GROUPS, policy="")
    two = {"federation": {"sites": 2, "wait": 2, "classes": [0, 1]}}
    train_sites(sites.LoopLine(paths[:2]), plan(tmp_path, **two), tmp_path / "out")
    with pytest.raises(FedkinError, match="no site is new"):
        train_sites(sites.LoopLine(paths[:2]), plan(tmp_path, **two), tmp_path / "same", start=tmp_path / "out")
    line = sites.LoopLine(paths)
    joined = train_sites(line, plan(tmp_path), tmp_path / "grown", start=tmp_path / "out")
    asked = {node for node, kind in line.sent if kind == "answer"}
    assert asked == {2}  # nobody else trains, tests or scores anything
    here = fedkin.auto(federation.take([0, 3, 1]), "mlr", "quick", seed=1, rounds=3, lr=0.3, dtype="float64")
    later = here.join(federation.take(GROUPS[2]))
    whole, x = fedkin.load(tmp_path / "grown"), torch.randn(5, 6, dtype=torch.float64)
    assert set(whole.names) == set(federation.names)
    for name in later.names:
        assert torch.allclose(joined.models[name](x), later.models[name](x), atol=1e-9)
        assert torch.allclose(whole.models[name](x), later.models[name](x), atol=1e-9)
        stored = load_file(next(tmp_path.glob(f"site-2/models/{name}.safetensors")))
        module = joined.models[name]
        module.load_state_dict(stored)
        assert torch.allclose(module(x), later.models[name](x), atol=1e-9)
    for name in here.names:
        assert torch.allclose(whole.models[name](x), here.models[name](x), atol=1e-9)
    moved = sites.write_sites(federation, tmp_path / "moved", ((0, 3, 2), (1,)), policy="")
    with pytest.raises(FedkinError, match="sites of their own"):
        train_sites(sites.LoopLine(moved), plan(tmp_path, **two), tmp_path / "odd", start=tmp_path / "out")


def test_a_site_whose_policy_keeps_numbers_at_home_is_named(federation: Federation, tmp_path: Path) -> None:
    paths = sites.write_sites(federation, tmp_path, GROUPS, policy="metrics = false")
    with pytest.raises(FedkinError, match="policy does not let"):
        train_sites(sites.LoopLine(paths), plan(tmp_path), tmp_path / "out")


def test_models_of_the_clients_own_are_refused(federation: Federation, tmp_path: Path) -> None:
    models = dict.fromkeys(federation.names, "tree:3")
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS, models=models))
    with pytest.raises(FedkinError, match="needs one model for all clients"):
        train_sites(line, plan(tmp_path, model={"name": "sites"}), tmp_path / "out")
    assert np.all([kind != "answer" for _, kind in line.sent])
