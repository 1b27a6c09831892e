"""The flower engine in full, on real servers: every method, sites and servers that are killed, a site that lies, a proxy.

SuperLink, SuperNodes and nginx are processes on loopback, ended by their ids.
"""

from __future__ import annotations

import pickle
import shutil
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch

import fedkin
from fedkin import algorithms
from fedkin.result import Result

from ..contract import test_every_method as contract
from . import processes, sites
from .liar import sitecustomize

pytest.importorskip("flwr", reason="pip install 'fedkin[flower]'")
pytestmark = [pytest.mark.slow, pytest.mark.engines]
HERE = Path(__file__).parent


SITES = {"north": (0, 2, 3), "south": (1, 4, 5)}
ORDER = [k for own in SITES.values() for k in own]
CLUSTERS = {f"site-{letter}": k % 2 for k, letter in enumerate("abcdef")}
OWN = dict(zip(CLUSTERS, ["tree:3", "ridge", "mlp:4", "tree:2", "boosting:5", "ridge"]))
PARAMETERS = {"oracle": {"clusters": CLUSTERS}, "fedska": {"encoder_steps": 2}}  # ten would be 24 messages more


def method(name: str) -> Any:
    return contract.make(name, **PARAMETERS.get(name, {}))


class Clinics(processes.Loopback):  # type: ignore[misc, name-defined]
    """Six very uneven clients at two sites."""

    def __init__(self, folder: Path, models: Mapping[str, str] | None = None) -> None:
        port = processes.free_port()
        options = ["--sites", ",".join(SITES), "--port", str(port)]
        done = processes.run("fedkin", "deploy", "init", str(folder), *options, cwd=folder.parent)
        assert done.returncode == 0, done.stderr
        super().__init__(folder, port)
        self.federation = contract.make_federation()
        paths = sites.write_sites(self.federation, folder / "data", list(SITES.values()), models=models)
        for site, path in zip(SITES, paths):
            shutil.copytree(path.parent, folder / "sites" / site, dirs_exist_ok=True)

    def start(self) -> None:
        self.start_server()
        for site in SITES:
            self.register(site)
            self.start_site(site)

    def plan(
        self, name: str, model: str, dtype: str = "float64", to: str | None = None, federation: Any = None, **run: Any
    ) -> Path:
        """A settings file for one method: server/NAME.toml, or elsewhere."""
        sections = {
            "federation": {
                "sites": len(SITES),
                "wait": 900,
                "timeout": 1200,
                "classes": [0, 1, 2],
                **(federation or {}),
            },
            "model": {"name": model},
            "algorithm": {"name": name, **method(name).model_dump(exclude_defaults=True)},
            "run": {"rounds": 3, "seed": 1, "dtype": dtype, "eval_every": 100, "checkpoint_every": 1, **run},
        }
        path = self.folder / "server" / (to or f"{name}.toml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(tomli_w.dumps(sections))
        return path

    def train_on(self, settings: Path) -> Path:
        """Start training; where the result will be."""
        out = settings.with_suffix("")
        self.train(settings=settings, out=out)
        return out

    def result(self, out: Path) -> Result:
        processes.wait_until((out / "result.safetensors").exists, 3600, "the end of training", self.logs)
        return fedkin.load(out)

    def mine(self, name: str, model: Any, dtype: str = "float64", **run: Any) -> Result:
        """The same in this process."""
        federation = self.federation.take(ORDER)
        return contract.run(name, federation, method(name), model=model, dtype=dtype, eval_every=100, **run)


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinics]:
    """One federation for all runs in which nobody is harmed; every client brings a model of its own, too."""
    federation = Clinics(tmp_path_factory.mktemp("federation") / "clinics", OWN)
    try:
        federation.start()
        yield federation
    finally:
        federation.end()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Clinics]:
    """A federation to do harm to."""
    federation = Clinics(tmp_path / "clinics")
    try:
        yield federation
    finally:
        federation.end()


def same(there: Result, mine: Result, tolerance: float = 1e-9) -> None:
    assert there.names == mine.names
    assert np.allclose(there.rows, mine.rows, rtol=0, atol=tolerance)
    for when, table in mine.metrics.items():
        for key, values in table.items():
            theirs = np.array(there.metrics[when][key], dtype=float)
            assert np.allclose(theirs, np.array(values, dtype=float), atol=10 * tolerance, equal_nan=True), (when, key)


# --- every method -----------------------------------------------------------------------------------------------------

ALONE = {"fedbn": "bn-mlp:6", "dfedu": "bn-mlp:6", "fedrelax": "sites"}
SINGLE = ("fedavg", "fedbn", "fedpnp", "fedu", "dfedu", "scaffold")


@pytest.mark.parametrize(("name", "model"), ALONE.items())
def test_private_state_and_models_of_their_own(name: str, model: str, clinics: Clinics) -> None:
    """Run after run through the same servers, one process per message: what a site knows is on its disk."""
    there = clinics.result(clinics.train_on(clinics.plan(name, model)))
    same(there, clinics.mine(name, OWN if model == "sites" else model))


def runs() -> dict[str, tuple[str, str, str]]:
    """Every method in float64, some in float32: run → (method, model, dtype)."""
    found = {name: (name, contract.MODEL.get(name, "bn-mlp:6"), "float64") for name in algorithms.names()}
    return found | {f"{name}-single": (name, "bn-mlp:6", "float32") for name in SINGLE}


@pytest.fixture(scope="module")
def together(clinics: Clinics) -> Path:
    """All runs in one ServerApp; what they ask a site at the same time rides in one Flower message (together/)."""
    app = clinics.folder / "together"
    shutil.copytree(HERE / "together", app / "together", ignore=shutil.ignore_patterns("__pycache__"))
    text = (clinics.folder / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace("fedkin_app", "together").replace("-federation", "-together"))
    for run, (name, model, dtype) in runs().items():
        clinics.plan(name, model, dtype, to=f"together/{run}.toml")
    plans = clinics.folder / "server" / "together"
    clinics.train(str(app), settings=plans, out=plans)
    processes.wait_until((plans / "done").exists, 7200, "the end of all runs", clinics.logs)
    return plans


@pytest.mark.parametrize("run", runs())
def test_every_method_gives_the_numbers_of_one_machine(run: str, clinics: Clinics, together: Path) -> None:
    name, model, dtype = runs()[run]
    refusal = together / f"{run}.refused"
    if name in contract.TOGETHER:
        assert contract.TOGETHER[name] in refusal.read_text()
        return
    assert not refusal.exists(), refusal.read_text()
    same(fedkin.load(together / run), clinics.mine(name, model, dtype), 1e-9 if dtype == "float64" else 1e-4)


# --- what breaks ------------------------------------------------------------------------------------------------------


def checkpoints(out: Path) -> list[str]:
    return sorted(path.stem for path in out.glob("checkpoints/*.safetensors"))


def test_a_killed_site_is_named_and_rejoins_with_its_model(fresh: Clinics) -> None:
    fresh.start()
    out = fresh.train_on(fresh.plan("fedbn", "bn-mlp:6", rounds=8))
    processes.wait_until(lambda: "round-000001" in checkpoints(out), 1800, "the first round", fresh.logs)
    fresh.processes["south"].end(signal.SIGKILL)
    processes.wait_until(lambda: "round-000002" in checkpoints(out), 1800, "the round without south", fresh.logs)
    fresh.start_site("south")
    result = fresh.result(out)
    failed = [set(record["log"].get("failed", {})) for record in result.history]
    assert {fresh.federation.names[k] for k in SITES["south"]} in failed
    assert failed[0] == failed[-1] == set()
    written = fresh.folder / "sites" / "south" / "models" / "site-b.json"
    processes.wait_until(written.exists, 600, "the model at its site", fresh.logs)


def test_a_slow_site_is_named_and_takes_part_again(fresh: Clinics) -> None:
    """South stands still (SIGSTOP) for longer than a site may take, then goes on."""
    fresh.start()
    settings = fresh.plan("scaffold", "mlp:6", rounds=8, federation={"timeout": 30})
    out = fresh.train_on(settings)
    processes.wait_until(lambda: "round-000001" in checkpoints(out), 1800, "the first round", fresh.logs)
    fresh.processes["south"].tell(signal.SIGSTOP)
    processes.wait_until(lambda: "round-000003" in checkpoints(out), 1800, "rounds without south", fresh.logs)
    fresh.processes["south"].tell(signal.SIGCONT)
    failed = [record["log"].get("failed", {}) for record in fresh.result(out).history]
    south = {fresh.federation.names[k] for k in SITES["south"]}
    assert any(set(one) == south for one in failed)
    assert all(set(one) <= south for one in failed)
    assert failed[0] == failed[-1] == {}


def test_a_killed_server_goes_on_after_the_last_finished_round(fresh: Clinics) -> None:
    fresh.start()
    settings = fresh.plan("scaffold", "mlp:6", rounds=5)
    out = fresh.train_on(settings)
    processes.wait_until(lambda: "round-000002" in checkpoints(out), 1800, "the second round", fresh.logs)
    fresh.processes["server"].end(signal.SIGKILL)
    assert not (out / "result.safetensors").exists()
    fresh.start_server()
    fresh.train_on(settings)
    same(fresh.result(out), fresh.mine("scaffold", "mlp:6", rounds=5))


LIES = {
    1: "sent NaN or infinity in 'rows'",
    2: "expected",
    3: "what was asked allows",
    4: "cannot be read",
    5: "no message of fedkin",
}


def test_a_site_that_lies_is_set_aside_and_its_bomb_does_not_go_off(fresh: Clinics, tmp_path: Path) -> None:
    """South runs a program of its own (liar/): NaN, a wrong shape, 64 MiB, and pickles that would make a folder."""
    proof, bomb = tmp_path / "proof", tmp_path / "bomb"
    pickle.loads(sitecustomize.bomb(str(proof)))  # noqa: S301 — the bomb is a real one
    assert proof.exists()
    fresh.start_server()
    for site in SITES:
        fresh.register(site)
    fresh.start_site("north")
    path = f"{HERE / 'liar'}:{processes.environment().get('PYTHONPATH', '')}".rstrip(":")
    fresh.start_site("south", PYTHONPATH=path, BOMB=str(bomb))
    result = fresh.result(fresh.train_on(fresh.plan("fedavg", "mlp:6", rounds=6)))
    failed = [record["log"].get("failed", {}) for record in result.history]
    south = {fresh.federation.names[k] for k in SITES["south"]}
    for number, reason in LIES.items():
        assert set(failed[number - 1]) == south
        assert all(reason in told for told in failed[number - 1].values()), (number, failed[number - 1])
    assert failed[5] == {}  # an honest answer counts again
    assert np.isfinite(result.rows).all()
    assert all(torch.isfinite(v).all() for model in result.models.values() for v in model.state_dict().values())
    assert not bomb.exists()


# --- a door before the control API ------------------------------------------------------------------------------------


@pytest.mark.skipif(
    shutil.which("nginx") is None, reason="nginx is not installed (Debian: apt-get install nginx-light)"
)
def test_nginx_lets_sites_in_and_nobody_to_the_control_api(tmp_path: Path) -> None:
    """As server/nginx.conf has it: sites through the door, flwr on the machine itself."""
    door = Clinics(tmp_path / "clinics")
    door.connection = "inside"
    inner = door.port - 1
    try:
        door.start_server(HOST="127.0.0.1", PORT=str(inner))
        (door.folder / "server" / "nginx").mkdir()
        command = ["nginx", "-p", str(door.folder / "server"), "-c", "nginx.conf", "-e", "stderr"]
        door.processes["nginx"] = processes.Process(command, door.folder / "nginx.log", door.folder)
        processes.wait_until(lambda: processes.listens(door.port), 300, "the start of nginx", door.logs)
        for site in SITES:
            door.register(site)
            door.start_site(site)
        same(door.result(door.train_on(door.plan("fedavg", "mlp:6", rounds=1))), door.mine("fedavg", "mlp:6", rounds=1))
        for api in ("/v1/control/list-runs", "/v1/runtime/acquire-task", "/", "/v1/fleet/../control/list-runs"):
            assert answer(door, door.port, api) == 403, api
        assert answer(door, inner, "/v1/control/list-runs") != 403
        outside = processes.run("flwr", "list", "federation", cwd=door.folder, **door.home)
        inside = processes.run("flwr", "list", "inside", cwd=door.folder, **door.home)
        assert outside.returncode != 0, outside.stdout
        assert inside.returncode == 0, inside.stdout + inside.stderr
    finally:
        door.end()


def answer(door: Clinics, port: int, api: str) -> int:
    """The status of a POST without anything that says who asks."""
    trusted = ssl.create_default_context(cafile=str(door.folder / "server" / "certificates" / "ca.pem"))
    request = urllib.request.Request(f"https://127.0.0.1:{port}{api}", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30, context=trusted) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refusal:
        return int(refusal.code)
