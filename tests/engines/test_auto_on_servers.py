"""auto through a real SuperLink and SuperNodes on loopback: the models of one machine, with few messages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import fedkin
from fedkin import Federation

from ..portfolio.conftest import sites as contrary_sites
from . import processes, sites

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")
pytestmark = [pytest.mark.slow, pytest.mark.engines]

SITES = {"north": (0, 2, 3), "south": (1, 4, 5)}
ORDER = [k for own in SITES.values() for k in own]
RUN = {"rounds": 2, "seed": 1, "dtype": "float64"}


@pytest.fixture
def federation() -> Federation:
    return contrary_sites(clients=6, regression=True)


@pytest.fixture
def servers(federation: Federation, tmp_path: Path) -> Iterator[processes.Loopback]:
    """Two sites that `fedkin deploy init` made, connected, with the policy they come with."""

    def settle(folder: Path) -> None:
        for site, path in zip(SITES, sites.write_sites(federation, folder / "data", list(SITES.values()), policy="")):
            shutil.copytree(path.parent, folder / "sites" / site, dirs_exist_ok=True)

    with processes.connected(tmp_path, list(SITES), settle) as loopback:
        yield loopback


def test_auto_through_flower_gives_the_models_of_one_machine(
    servers: processes.Loopback, federation: Federation
) -> None:
    settings = servers.folder / "server" / "auto.toml"
    algorithm = {"name": "auto", "effort": "quick", "lr": 0.1}
    told = {"sites": 2, "wait": 900, "timeout": 1200}
    settings.write_text(
        tomli_w.dumps({"federation": told, "model": {"name": "linear"}, "algorithm": algorithm, "run": RUN})
    )
    out = settings.with_suffix("")
    servers.train(settings=settings, out=out)
    written = [
        servers.folder / "sites" / site / "models" / f"{federation.names[k]}.json"
        for site in SITES
        for k in SITES[site]
    ]
    processes.wait_until(lambda: all(path.exists() for path in written), 1800, "the models", servers.logs)
    there, here = fedkin.load(out), fedkin.auto(federation.take(ORDER), "linear", "quick", lr=0.1, **RUN)
    x = torch.randn(5, 6, dtype=torch.float64)
    assert there.names == here.names
    for path, name in zip(written, here.names):
        assert torch.allclose(there.models[name](x), here.models[name](x), atol=1e-9)
        assert there.auto[name]["members"] == pytest.approx(here.auto[name]["members"], abs=1e-9)
        module = there.models[name]
        module.load_state_dict(load_file(path.with_suffix(".safetensors")))
        assert torch.allclose(module(x), here.models[name](x), atol=1e-9)
    assert there.metrics["deployed"] == here.metrics["deployed"]
