"""The ray engine: the same numbers, and what happens when actors die, hang or get more than they can hold."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin import algorithms, engines
from fedkin.errors import FedkinError
from fedkin.models import ModelSpec
from fedkin.streams import Streams

from ..contract import test_every_method as contract
from ..portfolio.conftest import sites as contrary_sites

ray = pytest.importorskip("ray", reason="pip install 'fedkin[ray]'")


QUICK = {"fedavg": "bn-mlp:6", "fedbn": "bn-mlp:6", "fedpnp": "mlp:6", "dfedu": "bn-mlp:6", "scaffold": "mlp:6"}
SGD = {"lr": 0.1, "batch_size": 8}


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One Ray for all tests here; the engine joins it and leaves it running."""
    for left in reversed(range(5)):
        try:
            ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=2**28)
            break
        except Exception as problem:  # Ray gives its own processes 30 seconds: too few on a very busy machine
            ray.shutdown()
            if not left or "timed out during startup" not in str(problem):
                raise
    yield
    ray.shutdown()


def agree(name: str, model: str, dtype: str, **options: Any) -> None:
    federation, tolerance = contract.make_federation(), 1e-9 if dtype == "float64" else 1e-4
    options = {"model": contract.MODEL.get(name, model), "dtype": dtype, **options}
    if name in contract.TOGETHER:
        with pytest.raises(FedkinError, match=contract.TOGETHER[name]):
            contract.run(name, federation, engine="ray", **options)
        return
    here, there = (
        contract.run(name, federation, engine=engine, workers=2, **options) for engine in ("in_process", "ray")
    )
    assert np.allclose(here.rows, there.rows, rtol=0, atol=tolerance)
    assert here.facts["bytes"] == there.facts["bytes"]
    assert here.facts["messages"] == there.facts["messages"]
    for when in ("pre", "post"):
        mine, theirs = (np.array(r.metrics[when]["test_loss"], dtype=float) for r in (here, there))
        assert np.allclose(mine, theirs, atol=10 * tolerance, equal_nan=True)


@pytest.mark.parametrize(("name", "model"), QUICK.items())
def test_same_numbers(name: str, model: str) -> None:
    agree(name, model, "float64")


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", ["mlp:6", "bn-mlp:6"])
@pytest.mark.parametrize("name", algorithms.names())
def test_same_numbers_for_every_method(name: str, model: str, dtype: str) -> None:
    agree(name, model, dtype, cohort=4)


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.parametrize("regression", [False, True])
def test_auto_gives_the_models_of_one_process(regression: bool) -> None:
    federation, model = contrary_sites(clients=6, regression=regression), "linear" if regression else "mlp:4"
    how: dict[str, Any] = {"effort": "standard", "rounds": 3, "lr": 0.1, "dtype": "float64"}
    here, there = (fedkin.auto(federation, model, workers=2, engine=name, **how) for name in ("in_process", "ray"))
    x = torch.randn(5, 6, dtype=torch.float64)
    for name in federation.names:
        assert torch.allclose(here.models[name](x), there.models[name](x), atol=1e-8)
        assert here.auto[name]["members"] == pytest.approx(there.auto[name]["members"], abs=1e-6)
    assert here.facts["bytes"] == there.facts["bytes"]
    assert here.metrics["deployed"].keys() == there.metrics["deployed"].keys()


def test_loss_and_metrics_reach_the_actors() -> None:
    asked: dict[str, Any] = {"loss": "focal:1", "class_weight": "balanced", "metrics": ["brier"]}
    agree("fedavg", "mlp:6", "float64", **asked)
    there = contract.run("fedavg", contract.make_federation(), engine="ray", workers=2, model="mlp:6", **asked)
    assert there.metric == "test_brier"
    assert np.isfinite(there.summary()["mean"])


@pytest.fixture(scope="module")
def clients(_cluster: None) -> Iterator[Any]:
    """Six clients in two actors, ready to be asked."""
    federation = contract.make_federation()
    spec = ModelSpec.of("mlp:6", federation.task, torch.float64)
    connected = engines.connect("ray", federation, spec, Streams(0), 2, {"timeout": 600})
    yield connected
    connected.close()


def train(clients: Any) -> Any:
    """A training round that leaves no trace."""
    rows = torch.zeros((6, width()), dtype=torch.float64)
    return clients.ask("train", np.arange(6), {"rows": rows}, {"sgd": SGD, "round": 1, "commit": False})


def width() -> int:
    return ModelSpec.of("mlp:6", contract.make_federation().task, torch.float64).layout.width


def process(clients: Any, host: int) -> int:
    return int(ray.get(clients.actors[host].__ray_call__.remote(lambda self: os.getpid()), timeout=600))


def test_an_actor_that_dies_in_a_round_is_started_again(clients: Any) -> None:
    """Killed while the round waits for it: its clients are named, the others' answers count, and next time all are there."""
    expected = train(clients)
    lost = [clients.names[k] for k in clients.members[0]]
    number = process(clients, 0)
    clients.actors[0].__ray_call__.remote(lambda self: time.sleep(600))  # the round waits for it …
    Timer(1.0, os.kill, (number, signal.SIGKILL)).start()
    replies = train(clients)
    assert sorted(replies.failed) == sorted(lost)
    assert all("its Ray actor died" in reason for reason in replies.failed.values())
    assert replies.ids.tolist() == clients.members[1].tolist()
    again = train(clients)
    assert not again.failed
    assert torch.equal(again["rows"], expected["rows"])
    assert process(clients, 0) != number


def test_private_state_of_a_dead_actor_is_that_of_the_last_checkpoint(clients: Any) -> None:
    state = {"control": torch.arange(6.0), "counters": torch.ones((6, 1), dtype=torch.int64)}
    clients.restore(state)
    os.kill(process(clients, 1), signal.SIGKILL)
    assert train(clients).failed
    kept = clients.snapshot()
    assert all(torch.equal(kept[key], value) for key, value in state.items())


def test_an_actor_that_hangs_is_started_again() -> None:
    federation = contract.make_federation()
    spec = ModelSpec.of("mlp:6", federation.task, torch.float64)
    clients: Any = engines.connect("ray", federation, spec, Streams(0), 2, {"timeout": 600})
    try:
        train(clients)  # the others are to be quick
        clients.options = clients.options.model_copy(update={"timeout": 5})
        clients.actors[1].__ray_call__.remote(lambda self: time.sleep(600))
        started = time.monotonic()
        replies = train(clients)
        assert time.monotonic() - started < 300
        assert set(replies.failed) == {clients.names[k] for k in clients.members[1]}
        assert "did not answer within 5 s" in next(iter(replies.failed.values()))
    finally:
        clients.close()


def test_a_client_whose_task_fails_is_named_and_one_line_says_why_when_all_do(clients: Any) -> None:
    with pytest.raises(FedkinError, match="'train' failed on every client, first on 'site-a'"):
        clients.ask("train", np.arange(6), {"rows": torch.zeros((6, 2))}, {"sgd": SGD, "round": 1})
    with pytest.raises(FedkinError, match="unknown client task"):
        clients.ask("trian", np.arange(6))


def test_rows_travel_in_chunks(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The object store holds at most two chunks per actor; the numbers are the same."""
    whole, sent = train(clients), []
    monkeypatch.setattr("fedkin.engines.ray.clients.CHUNK_BYTES", 1)
    chunks = importlib.import_module("fedkin.engines.ray.clients")._chunks
    monkeypatch.setattr(
        "fedkin.engines.ray.clients._chunks", lambda q: (sent.append(len(c.ids)) or c for c in chunks(q))
    )
    apart = train(clients)
    assert sent == [1] * 6
    assert torch.allclose(apart["rows"], whole["rows"], rtol=0, atol=1e-12)


def test_the_driver_sees_no_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """In dFedU no array as wide as a row comes to the driver, except the models it is asked to save at the end."""
    seen: list[int] = []
    fetch, wide = ray.get, width()

    def watched(references: Any, **options: Any) -> Any:
        found = fetch(references, **options)
        for value in found if isinstance(found, list) else [found]:
            arrays = getattr(value, "arrays", value if isinstance(value, dict) else {})
            seen.extend(key for key, a in arrays.items() if getattr(a, "shape", (0,))[-1:] == (wide,))
        return found

    monkeypatch.setattr("fedkin.engines.ray.clients.ray.get", watched)
    result = contract.run("dfedu", contract.make_federation(), engine="ray", workers=2, eval_every=3)
    assert set(seen) == {"model"}
    assert result.history[-1]["log"]["letters"] > 0


class Small(nn.Module):
    """A user's own network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(x))


def test_own_models_and_resuming(tmp_path: Path) -> None:
    federation, options = contract.make_federation(), {"seed": 1, "dtype": "float64", "checkpoint_every": 1}
    options |= {"algorithm": algorithms.make("scaffold", {"lr": 0.01}), "cohort": 2}
    whole = fedkin.train(federation, Small, rounds=4, **options)
    fedkin.train(federation, Small, rounds=2, engine="ray", workers=2, out=tmp_path / "run", **options)
    resumed = fedkin.resume(tmp_path / "run", federation, Small, rounds=4)
    assert np.allclose(resumed.rows, whole.rows, rtol=0, atol=1e-9)


def test_wrong_options_are_refused_in_one_line() -> None:
    federation = contract.make_federation()
    with pytest.raises(FedkinError, match="did you mean 'address'"):
        fedkin.train(federation, engine="ray", engine_options={"adress": "auto"})
    with pytest.raises(FedkinError, match="timeout = -1 is not allowed"):
        fedkin.train(federation, engine="ray", engine_options={"timeout": -1})
    with pytest.raises(FedkinError, match="Connection refused"):
        importlib.import_module("fedkin.engines.ray.cluster").refuse_nobody("127.0.0.1:9")
    with pytest.raises(FedkinError, match="did you mean 'ray'"):
        fedkin.train(federation, engine="rai")
    with pytest.raises(FedkinError, match="fedkin deploy init"):
        fedkin.train(federation, engine="flower")
