"""The peer benchmark without the peers: the protocol, the networks, and the check that nobody skips work."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WIDTHS = {"mlr": 7850, "mlp": 89610, "cnn": 26170}


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("peers_benchmark", BENCHMARKS / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain_fedavg(net: torch.nn.Module, images: np.ndarray, labels: np.ndarray, work: ModuleType) -> np.ndarray:
    """Parameters after one round, written out: SGD of every client from the same start, then their mean."""
    start = {name: value.clone() for name, value in net.state_dict().items()}
    trained = []
    for x, y in zip(images, labels):
        net.load_state_dict(start)
        optimiser = torch.optim.SGD(net.parameters(), lr=work.LR)
        for step in range(work.STEPS):
            batch = slice(step * work.BATCH, (step + 1) * work.BATCH)
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
            loss.backward()
            optimiser.step()
        trained.append(np.concatenate([p.detach().numpy().ravel() for p in net.parameters()]))
    return np.mean(trained, axis=0)


@pytest.mark.parametrize("model", list(WIDTHS))
def test_the_peers_networks_are_fedkins(peers: ModuleType, model: str) -> None:
    import plain_networks

    initial = peers.fedkin_worker.initial_parameters(model)
    net = plain_networks.network(model, initial)
    assert [p.shape for p in plain_networks.parameters(net)] == [p.shape for p in initial]
    assert sum(p.size for p in initial) == WIDTHS[model]
    for own, given in zip(plain_networks.parameters(net), initial):
        np.testing.assert_array_equal(own, given)


def test_the_fedkin_worker_does_the_rounds_it_is_told_to(peers: ModuleType, tmp_path: Path) -> None:
    import plain_networks

    initial = peers.fedkin_worker.initial_parameters("mlr")
    peers.work.make_data(tmp_path, 3)
    np.savez(tmp_path / "mlr.npz", *initial)
    worker = peers.Worker("fedkin", sys.executable, ["mlr", "2", str(tmp_path)], tmp_path / "log", limit=300)
    assert set(worker.versions()) == {"fedkin", "torch", "numpy"}
    seconds = [worker.round(), worker.round()]
    worker.close()
    assert worker.process.returncode == 0, (tmp_path / "log").read_text()
    assert min(seconds) > 0
    images, labels = np.load(tmp_path / "images.npy"), np.load(tmp_path / "labels.npy")
    after = plain_fedavg(plain_networks.network("mlr", initial), images[:2], labels[:2], peers.work)
    change = np.abs(after - np.concatenate([p.ravel() for p in initial])).mean()
    assert peers.other_work(worker.changes[:1], [change]) is None


def test_skipped_work_is_noticed(peers: ModuleType) -> None:
    assert peers.other_work([1.01, 0.95], [1.0, 1.0]) is None
    assert "round 1" in peers.other_work([0.95, 1.0], [1.0, 1.0])  # 19 steps instead of 20
    assert "round 2" in peers.other_work([1.0, 0.5], [1.0, 1.0])
    assert "round 1" in peers.other_work([float("nan")], [1.0])


def test_a_worker_that_fails_says_why(peers: ModuleType, tmp_path: Path) -> None:
    worker = peers.Worker("fedkin", sys.executable, ["mlr", "2", str(tmp_path)], tmp_path / "log", limit=300)
    with pytest.raises(peers.Unavailable, match=r"FileNotFoundError.*images.npy"):
        worker.versions()
    worker.close()


def test_pips_reason_is_passed_on(peers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[object], **_: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / "flower").mkdir(exist_ok=True)
        failed = "pip" in command
        return subprocess.CompletedProcess([], int(failed), "", "ERROR: No matching distribution found for flwr\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    pythons, missing = peers.environments(["fedkin", "flower"], tmp_path, install=True)
    assert pythons == {"fedkin": sys.executable}
    assert missing == {"flower": "ERROR: No matching distribution found for flwr"}


def test_a_quick_run_installs_nothing(peers: ModuleType, tmp_path: Path) -> None:
    pythons, missing = peers.environments(["fedkin", "flower"], tmp_path, install=False)
    assert pythons == {"fedkin": sys.executable}
    assert "make bench-peers" in missing["flower"]
    assert not list(tmp_path.iterdir())


def told(model: str, clients: int, repeats: int, **seconds: float) -> dict[str, Any]:
    """A record of one case, as far as what was measured before is kept."""
    facts = {name: {"seconds_per_round": value} for name, value in seconds.items()}
    version = dict.fromkeys(seconds, "1")
    changes = dict.fromkeys(seconds, 0.5)
    case = {"model": model, "clients": clients, "repeats": repeats}
    return {**case, "results": facts, "failed": {}, "versions": version, "change_in_first_round": changes}


def test_cases_measured_before_stay_and_so_do_peers_left_out(peers: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    old = [told("cnn", 100, 1, fedkin=1.0, pfl=2.0, flower=3.0), told("mlr", 1000, 1, fedkin=1.0)]
    path.write_text(json.dumps({"records": old}))
    merged = peers.merged(path, [told("cnn", 100, 5, fedkin=0.5, pfl=1.5)])
    assert merged[1] == old[1]
    assert merged[0]["repeats"] == 5
    assert {name: found["seconds_per_round"] for name, found in merged[0]["results"].items()} == {
        "fedkin": 0.5,
        "flower": 3.0,
        "pfl": 1.5,
    }


def test_the_table_and_the_plot_show_every_case(peers: ModuleType, tmp_path: Path) -> None:
    seconds = {"fedkin": [1.0, 3.0, 2.0], "pfl": [5.0, 5.0, 5.0]}
    results = peers.results(seconds, clients=100)
    assert results["fedkin"]["client_steps_per_second"] == 1000
    results["pfl"] |= {"cpu_seconds_per_round": 9.0, "memory_bytes": 2**29}
    record = {"model": "mlp", "clients": 100, "results": results, "failed": {"flower": "ERROR: no"}}
    text = peers.table([record])
    assert "| MLP 784-100-100-10 | 100 | pfl | 5.00 | 9.00 | 0.50 | 400 | 2.50× |" in text
    assert "| fedkin | 2.00 | – | – | 1,000 |  |" in text
    assert "Flower | not measured: ERROR: no |" in text
    peers.plot([record], tmp_path / "peers.png")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
