"""Private training over sites: each keeps a ledger of its own, which no word of the server's sets back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkin import algorithms
from fedkin.deployment.server import FederationFile, train_sites
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.privacy.ledger import LEDGER, Ledger

from . import sites
from .test_flower_sites import GROUPS, federation, plan  # noqa: F401

PRIVACY: dict[str, Any] = {"level": "sample", "epsilon": 8.0, "delta": 1e-3}


def private_plan(folder: Path, rounds: int = 2, **changes: Any) -> FederationFile:
    method = algorithms.make("fedavg", {"epochs": 1, "privacy": {**PRIVACY, **changes}})
    return replace(plan(folder, "fedavg", "mlp:6", rounds=rounds, checkpoint_every=1), algorithm=method)


def spent(folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for site in sorted(folder.glob("site-*")):
        found |= Ledger(site / LEDGER).spent(1e-3).get("sample", {})
    return found


def test_sites_count_and_a_second_run_goes_on_counting(federation: Federation, tmp_path: Path) -> None:  # noqa: F811
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    result = train_sites(line, private_plan(tmp_path), tmp_path / "result")
    first = spent(tmp_path)
    assert set(first) == set(federation.names)
    assert np.allclose([first[name] for name in result.names], result.extras["epsilon"].numpy())
    assert max(first.values()) <= 8 * (1 + 1e-6)
    assert min(first.values()) > 7.5
    assert not (tmp_path / "result" / LEDGER).exists()
    # A server without memory, a new run: the sites remember.
    with pytest.raises(FedkinError, match="privacy budget does not last for another round"):
        train_sites(line, private_plan(tmp_path), tmp_path / "another")
    # A server that goes back to an old checkpoint does not get the spent budget back.
    (tmp_path / "result" / "result.safetensors").unlink()
    with pytest.raises(FedkinError, match="privacy budget does not last for another round"):
        train_sites(line, private_plan(tmp_path), tmp_path / "result")
    assert spent(tmp_path) == first


@pytest.mark.parametrize(
    ("policy", "changes", "message"),
    [
        ("", {"insecure_noise_seed": 1}, "draws its own noise"),
        ("training_epsilon = 2.0\ndelta = 1e-2", {}, "allows 2 and 0.01"),
        ("training_epsilon = 9.0\ndelta = 1e-5", {}, "allows 9 and 1e-05"),
    ],
)
def test_a_site_refuses_what_its_policy_does_not_allow(
    policy: str,
    changes: dict[str, Any],
    message: str,
    federation: Federation,  # noqa: F811
    tmp_path: Path,
) -> None:
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS, policy=policy))
    with pytest.raises(FedkinError, match=message):
        train_sites(line, private_plan(tmp_path, **changes), tmp_path / "result")
    assert not spent(tmp_path)


def test_a_site_that_wants_privacy_does_not_train_without(federation: Federation, tmp_path: Path) -> None:  # noqa: F811
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS, policy="training_epsilon = 2.0"))
    plain = replace(private_plan(tmp_path), algorithm=algorithms.make("fedavg"))
    with pytest.raises(FedkinError, match="without privacy of samples"):
        train_sites(line, plain, tmp_path / "result")
