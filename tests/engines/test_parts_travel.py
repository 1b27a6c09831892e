"""The frozen part over Flower and Ray: sent once, never in a row; what is private at home there, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedkin.deployment.server import train_sites
from fedkin.engines.flower.wire import Message
from fedkin.federation import Federation
from fedkin.result import Result

from ..contract import test_every_method as contract
from . import sites
from .test_flower_sites import GROUPS, plan

PARTS: dict[str, Any] = {"frozen": ["features.1"], "private": ["classifier.bias"]}
ORDER = [k for group in GROUPS for k in group]


class Counting(sites.LoopLine):
    """A line that counts the messages that carry the frozen part, and the bytes of the others."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths)
        self.carried: list[int] = []
        self.widest = 0

    def send(self, messages: Any, limits: Any, timeout: float) -> dict[int, Any]:
        for node, message in messages.items():
            if message.part("frozen"):
                self.carried.append(node)
            rows = message.part("per_client").get("rows")
            self.widest = max(self.widest, 0 if rows is None else rows.shape[1])
        return super().send(messages, limits, timeout)


@pytest.fixture
def federation() -> Federation:
    return contract.make_federation()


def here(federation: Federation, name: str, **options: Any) -> Result:
    return contract.run(name, federation.take(ORDER), model="mlp:6,4", dtype="float64", rounds=3, **options)


@pytest.mark.parametrize("name", ["fedavg", "dfedu"])
def test_sites_get_the_frozen_part_once(name: str, federation: Federation, tmp_path: Path) -> None:
    line = Counting(sites.write_sites(federation, tmp_path, GROUPS))
    there = train_sites(line, plan(tmp_path, name, "mlp:6,4", **PARTS), tmp_path / "result")
    mine = here(federation, name, **PARTS)
    assert np.allclose(there.rows, mine.rows, rtol=0, atol=1e-9)
    assert there.facts["bytes"] == mine.facts["bytes"]
    assert sorted(line.carried) == [0, 1, 2], "once per site, whatever the number of rounds"
    assert line.widest <= 6 * 4 + 4 + 4 * 3
    again = Counting(list(line.paths.values()))
    train_sites(again, plan(tmp_path, name, "mlp:6,4", **PARTS), tmp_path / "second")
    assert not again.carried, "a site that has it is not sent it again"
    deployed = load_file(tmp_path / "site-1" / "models" / f"{there.names[2]}.safetensors")
    assert deployed.keys() == mine.models[there.names[2]].state_dict().keys()
    assert torch.equal(deployed["features.1.weight"], mine.models[there.names[2]].state_dict()["features.1.weight"])


def test_a_run_over_sites_goes_on_and_a_site_that_lost_it_gets_it_again(federation: Federation, tmp_path: Path) -> None:
    line = Counting(sites.write_sites(federation, tmp_path, GROUPS))
    train_sites(line, plan(tmp_path, "fedavg", "mlp:6,4", rounds=2, checkpoint_every=1, **PARTS), tmp_path / "result")
    for path in tmp_path.glob("site-1/*/frozen-*"):
        path.unlink()
    there = train_sites(line, plan(tmp_path, "fedavg", "mlp:6,4", checkpoint_every=1, **PARTS), tmp_path / "result")
    assert sorted(line.carried) == [0, 1, 1, 2]
    assert np.allclose(there.rows, here(federation, "fedavg", **PARTS).rows, rtol=0, atol=1e-9)


def test_a_frozen_part_with_another_hash_is_refused(federation: Federation, tmp_path: Path) -> None:
    from fedkin.engines.flower.site import Site

    (path, *_) = sites.write_sites(federation, tmp_path, GROUPS)
    from fedkin.engines.flower.setup import Setup

    setup = Setup(federation.task, "mlp:6,4", "float64", 1, frozen=["features.1"], frozen_sha256="0" * 64)
    answer = Site.read(path).handle(
        Message({"kind": "frozen", "setup": setup.told()}, {"frozen/features.1.bias": torch.zeros(6)})
    )
    assert "came damaged" in answer.head["refused"]


def test_ray_actors_share_it(federation: Federation) -> None:
    pytest.importorskip("ray", reason="pip install 'fedkin[ray]'")
    mine, there = (here(federation, "fedavg", engine=engine, workers=2, **PARTS) for engine in ("in_process", "ray"))
    assert np.allclose(mine.rows, there.rows, rtol=0, atol=1e-9)
    assert mine.facts["bytes"] == there.facts["bytes"]
