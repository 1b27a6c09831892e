"""The guide, command by command, on real servers, and who is kept out. (The long tests: test_flower_federation.py.)"""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedkin
from fedkin.federation import Federation

from . import processes

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")
GUIDE = Path(__file__).parents[2] / "docs" / "deployment.md"


class Guided(processes.Loopback):  # type: ignore[misc, name-defined]
    """The commands of the guide, line by line, at a free port; those that end in & are kept running."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder / "clinics", port)
        (block,) = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), flags=re.S)
        self.commands = block.replace("9092", str(port)).strip().splitlines()
        self.cwd = folder

    def follow(self) -> None:
        for command in self.commands:
            if command.startswith("cd "):
                self.cwd = self.cwd / command.split()[1]
            elif command.startswith("export FLWR_HOME=$PWD/"):
                self.home = {"FLWR_HOME": str(self.cwd / command.partition("$PWD/")[2])}
            elif command.endswith("&"):
                self._keep(command.removesuffix("&").strip())
            else:
                done = processes.run(*command.split(), cwd=self.cwd, timeout=1800, **self.home)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{self.logs()}"

    def _keep(self, program: str) -> None:
        name = Path(program).parent.name
        if name == "server":
            self.start_server()
        else:
            self.start_site(name)


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guided]:
    """The federation of the guide, after its last command."""
    federation = Guided(tmp_path_factory.mktemp("guide"), processes.free_port())
    try:
        federation.follow()
        yield federation
    finally:
        federation.end()


def as_one(folder: Path, names: list[str]) -> Federation:
    """The sites' data as one federation in this process."""
    data = {}
    for name in names:
        with np.load(folder / "sites" / name / "data.npz") as file:
            data[name] = (file["x"], file["y"])
    return Federation.from_arrays(data)


def test_the_guide_gives_the_numbers_of_one_machine(guided: Guided) -> None:
    result = fedkin.load(guided.folder / "server" / "result")
    mine = fedkin.train(as_one(guided.folder, ["north", "south"]), "mlr", "fedavg", rounds=2)
    assert result.names == mine.names
    assert np.allclose(result.rows, mine.rows, rtol=0, atol=1e-4)
    assert result.facts["finished"]
    assert (guided.folder / "report.html").exists() or list(guided.folder.rglob("*.html"))
    for name in result.names:
        own, ours = load_file(guided.folder / "sites" / name / "models" / f"{name}.safetensors"), result.models[name]
        assert all(torch.equal(own[key], value) for key, value in ours.state_dict().items())


def test_plaintext_and_a_wrong_authority_are_refused(guided: Guided, tmp_path: Path) -> None:
    plain = http.client.HTTPConnection("127.0.0.1", guided.port, timeout=10)
    plain.request("GET", "/")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    from fedkin.deployment.credentials import make_certificates

    other = make_certificates(tmp_path, ["127.0.0.1"]) / "ca.pem"
    for authority, refused in ((other, True), (guided.folder / "server" / "certificates" / "ca.pem", False)):
        context = ssl.create_default_context(cafile=str(authority))
        with socket.create_connection(("127.0.0.1", guided.port), timeout=10) as raw:
            if refused:
                with pytest.raises(ssl.SSLCertVerificationError):
                    context.wrap_socket(raw, server_hostname="127.0.0.1")
            else:
                context.wrap_socket(raw, server_hostname="127.0.0.1").close()


def test_an_unknown_key_and_a_wrong_ca_keep_a_site_out(guided: Guided, tmp_path: Path) -> None:
    """A copy of a site with a key that was not registered, and one that trusts another authority."""
    from fedkin.deployment.credentials import make_certificates, make_key

    before = guided.processes["server"].text().count("Activated node_id")
    for name in ("stranger", "misled"):
        shutil.copytree(guided.folder / "sites" / "north", guided.folder / "sites" / name)
    for file in ("key", "key.pub"):
        (guided.folder / "sites" / "stranger" / file).unlink()
    make_key(guided.folder / "sites" / "stranger" / "key")
    shutil.copy(make_certificates(tmp_path, ["127.0.0.1"]) / "ca.pem", guided.folder / "sites" / "misled" / "ca.pem")
    for name, sign in (
        ("stranger", "Failed to activate SuperNode"),
        ("misled", "(?i)certificate verify failed"),
    ):
        guided.start_site(name)
        log = guided.processes[name]
        processes.wait_until(
            lambda log=log, sign=sign: re.search(sign, log.text()), 600, f"the refusal of {name}", log.text
        )
        guided.processes.pop(name).end()
    assert guided.processes["server"].text().count("Activated node_id") == before
