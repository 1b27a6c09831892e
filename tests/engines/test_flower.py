"""The flower engine on real servers: SuperLink and SuperNodes as processes on loopback, ended by their ids."""

from __future__ import annotations

import http.client
import importlib.util
import re
import shutil
import signal
import socket
import ssl
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import fedkin
from fedkin import algorithms
from fedkin.federation import Federation

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")
GUIDE = Path(__file__).parents[2] / "docs" / "deployment.md"


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


processes, sites = _load("processes"), _load("sites")
contract = sites.load_contract("conftest")


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
                done = processes.run(*command.split(), cwd=self.cwd, timeout=900, **self.home)
                assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{self._logs()}"

    def _keep(self, program: str) -> None:
        name = Path(program).parent.name
        if name == "server":
            self.start_server()
        else:
            self.start_site(name)

    def _logs(self) -> str:
        return "\n".join(f"--- {name}\n{process.text()[-3000:]}" for name, process in self.processes.items())


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
    from fedkin.engines.flower.credentials import make_certificates

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
    from fedkin.engines.flower.credentials import make_certificates, make_key

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
        processes.wait_until(lambda log=log, sign=sign: re.search(sign, log.text()), 120, f"the refusal of {name}")
        guided.processes.pop(name).end()
    assert guided.processes["server"].text().count("Activated node_id") == before


# --- the long ones: make test-engines ---------------------------------------------------------------------------------


class Clinics(processes.Loopback):  # type: ignore[misc, name-defined]
    """Three uneven clients at two sites: north has two of them."""

    CLIENTS = ((0, 2), (1,))

    def __init__(self, folder: Path, algorithm: str, model: str, **run: Any) -> None:
        port = processes.free_port()
        options = ["--sites", "north,south", "--port", str(port), "--algorithm", algorithm, "--model", model]
        done = processes.run("fedkin", "deploy", "init", str(folder), *options, cwd=folder.parent)
        assert done.returncode == 0, done.stderr
        super().__init__(folder, port)
        self.federation = contract.make_federation((24, 9, 17))
        for site, path in zip(("north", "south"), sites.write_sites(self.federation, folder / "data", self.CLIENTS)):
            for file in path.parent.iterdir():
                shutil.copy(file, folder / "sites" / site / file.name)
        settings = folder / "server" / "federation.toml"
        sections = tomllib.loads(settings.read_text())
        sections["federation"] |= {"timeout": 240, "classes": [0, 1, 2]}
        sections["algorithm"] |= {"lr": 0.1, "batch_size": 8}
        sections["run"] |= {"seed": 1, "dtype": "float64", "eval_every": 100, **run}
        settings.write_text(tomli_w.dumps(sections))
        self.algorithm, self.model, self.run = algorithm, model, sections["run"]

    def start(self) -> None:
        self.start_server()
        for site in ("north", "south"):
            self.register(site)
            self.start_site(site)

    def mine(self) -> Any:
        """The same in this process."""
        order = [k for group in self.CLIENTS for k in group]
        method = algorithms.make(self.algorithm, {"lr": 0.1, "batch_size": 8})
        return fedkin.train(self.federation.take(order), self.model, method, **self.run)

    def checkpoints(self) -> list[str]:
        return sorted(path.stem for path in (self.folder / "server" / "result").glob("checkpoints/*.safetensors"))

    def result(self) -> Any:
        processes.wait_until(self.finished, 900, "the end of training")
        return fedkin.load(self.folder / "server" / "result")


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.parametrize(("algorithm", "model"), [("fedbn", "bn-mlp:6"), ("dfedu", "mlp:6"), ("scaffold", "mlp:6")])
def test_methods_with_private_state(algorithm: str, model: str, tmp_path: Path) -> None:
    clinics = Clinics(tmp_path / "clinics", algorithm, model, rounds=3)
    try:
        clinics.start()
        clinics.train()
        assert np.allclose(clinics.result().rows, clinics.mine().rows, rtol=0, atol=1e-9)
    finally:
        clinics.end()


@pytest.mark.slow
@pytest.mark.engines
def test_a_killed_site_is_named_and_rejoins_with_its_model(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path / "clinics", "fedbn", "bn-mlp:6", rounds=8)
    try:
        clinics.start()
        clinics.train()
        processes.wait_until(lambda: "round-000001" in clinics.checkpoints(), 300, "the first round")
        clinics.processes["south"].end(signal.SIGKILL)
        processes.wait_until(lambda: "round-000002" in clinics.checkpoints(), 300, "the round without south")
        clinics.start_site("south")
        result = clinics.result()
        failed = [set(record["log"].get("failed", {})) for record in result.history]
        assert {"site-b"} in failed
        assert failed[0] == failed[-1] == set()
        written = tmp_path / "clinics" / "sites" / "south" / "models" / "site-b.json"
        processes.wait_until(written.exists, 120, "the model at its site")
    finally:
        clinics.end()


@pytest.mark.slow
@pytest.mark.engines
def test_a_killed_server_goes_on_after_the_last_finished_round(tmp_path: Path) -> None:
    clinics = Clinics(tmp_path / "clinics", "scaffold", "mlp:6", rounds=5)
    try:
        clinics.start()
        clinics.train()
        processes.wait_until(lambda: "round-000002" in clinics.checkpoints(), 300, "the second round")
        clinics.processes["server"].end(signal.SIGKILL)
        assert not clinics.finished()
        clinics.start_server()
        clinics.train()
        assert np.allclose(clinics.result().rows, clinics.mine().rows, rtol=0, atol=1e-9)
    finally:
        clinics.end()
