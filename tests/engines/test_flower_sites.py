"""The flower engine without Flower: every message as bytes, every site from its own disk."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import fedkin
from fedkin import algorithms
from fedkin.deployment.server import FederationFile, train_sites
from fedkin.engines.flower.site import Site
from fedkin.engines.flower.wire import Message
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.task import Forecast, Task

from ..contract import test_every_method as contract
from . import sites

GROUPS = ((0, 3), (1,), (2, 4, 5))
QUICK = {"fedavg": "bn-mlp:6", "fedbn": "bn-mlp:6", "fedpnp": "mlp:6", "dfedu": "bn-mlp:6", "fedrelax": "mlp:6"}


def plan(
    folder: Path,
    name: str,
    model: str,
    dtype: str = "float64",
    rounds: int = 3,
    federation: Mapping[str, Any] | None = None,
    **run: Any,
) -> FederationFile:
    method = contract.make(name)
    sections = {
        "federation": {"sites": len(GROUPS), "wait": 2, **(federation or {"classes": [0, 1, 2]})},
        "model": {"name": model},
        "algorithm": {"name": name, **method.model_dump(exclude_defaults=True)},
        "run": {"rounds": rounds, "seed": 1, "dtype": dtype, **run},
    }
    path = folder / "federation.toml"
    path.write_text(tomli_w.dumps(sections))
    return FederationFile.read(path)


@pytest.fixture
def federation() -> Federation:
    return contract.make_federation()


def here(name: str, federation: Federation, **options: Any) -> Any:
    """The same run in this process, on the clients in the order of the sites."""
    return contract.run(name, federation, **options)


@pytest.mark.parametrize(("name", "model"), QUICK.items())
def test_same_numbers_as_on_one_machine(name: str, model: str, federation: Federation, tmp_path: Path) -> None:
    agree(name, model, "float64", federation, tmp_path)


@pytest.mark.slow
@pytest.mark.engines
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("model", ["mlp:6", "bn-mlp:6"])
@pytest.mark.parametrize("name", algorithms.names())
def test_same_numbers_for_every_method(
    name: str, model: str, dtype: str, federation: Federation, tmp_path: Path
) -> None:
    agree(name, model, dtype, federation, tmp_path)


def agree(name: str, model: str, dtype: str, federation: Federation, tmp_path: Path) -> None:
    model, tolerance = contract.MODEL.get(name, model), 1e-9 if dtype == "float64" else 1e-4
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    planned = plan(tmp_path, name, model, dtype, cohort=4)
    order = [k for group in GROUPS for k in group]
    if name in contract.TOGETHER or name == "oracle":
        with pytest.raises(FedkinError, match=contract.TOGETHER.get(name, "cluster")):
            train_sites(line, planned, tmp_path / "result")
        return
    there = train_sites(line, planned, tmp_path / "result")
    mine = here(name, federation.take(order), model=model, cohort=4, dtype=dtype)
    assert there.names == mine.names
    assert np.allclose(there.rows, mine.rows, rtol=0, atol=tolerance)
    assert there.facts["bytes"] == mine.facts["bytes"]
    same_metrics(there, mine, 10 * tolerance)


def test_loss_and_metrics_reach_the_sites(federation: Federation, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"loss": "focal:1", "class_weight": [1.0, 4.0, 2.0], "metrics": ["auroc", "brier"]}
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    there = train_sites(line, plan(tmp_path, "fedavg", "mlp:6", **asked), tmp_path / "result")
    order = [k for group in GROUPS for k in group]
    mine, plain = (here("fedavg", federation.take(order), model="mlp:6", **more) for more in (asked, {}))
    assert there.task == mine.task
    assert there.metric == "test_auroc"
    assert np.allclose(there.rows, mine.rows, rtol=0, atol=1e-9)
    assert not np.allclose(there.rows, plain.rows, rtol=0, atol=1e-3)
    same_metrics(there, mine)


@pytest.mark.parametrize("kind", ["multilabel", "counts"])
@pytest.mark.parametrize("name", ["fedavg", "fedu", "fedpnp"])
def test_columns_of_labels_and_counts_are_learned_on_sites(name: str, kind: str, tmp_path: Path) -> None:
    rng, clients = np.random.default_rng(0), {}
    for k in range(6):
        x = rng.normal(size=(30, 5))
        y = (x[:, :3] > 0).astype(int) if kind == "multilabel" else rng.poisson(np.exp(x[:, 0]))
        clients[f"client {k}"] = (x, y)
    data = Federation.from_arrays(clients, task=kind)  # type: ignore[arg-type]
    line = sites.LoopLine(sites.write_sites(data, tmp_path, GROUPS))
    planned = plan(tmp_path, name, "mlp:6", federation={"task": kind}, metrics=["mae"] if kind == "counts" else ["f1"])
    there = train_sites(line, planned, tmp_path / "result")
    mine = here(name, data.take([k for group in GROUPS for k in group]), model="mlp:6", metrics=there.task.metrics)
    assert there.task == mine.task
    assert (there.task.loss, there.metric) == (("poisson", "test_mae") if kind == "counts" else ("bce", "test_f1"))
    assert np.allclose(there.rows, mine.rows, rtol=0, atol=1e-9)
    same_metrics(there, mine)


def test_a_metric_without_a_value_counts_no_sample_of_the_global_test(federation: Federation, tmp_path: Path) -> None:
    """A site whose test samples are of one class has no AUROC of any model; its other numbers are its own."""
    asked: dict[str, Any] = {"metrics": ["auroc"], "global_test": True}
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    there = train_sites(line, plan(tmp_path, "local", "mlp:6", **asked), tmp_path / "result")
    mine = here("local", federation.take([k for group in GROUPS for k in group]), model="mlp:6", **asked)
    assert 0 < there.valued < len(federation)
    assert not any(record["log"].get("failed") for record in there.history)
    for when, values in mine.facts["global"].items():
        assert np.allclose(there.facts["global"][when], values, atol=1e-8)


@pytest.mark.parametrize(("key", "value"), [("test_auroc", 1.5), ("test_auroc_count", 7777), ("test_brier", -0.1)])
def test_metrics_out_of_their_range_are_not_believed(
    key: str, value: float, federation: Federation, tmp_path: Path
) -> None:
    class Boasts(sites.LoopLine):
        def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
            old = answer.tensors.get(f"array/{key}")
            return answer.encode() if node or old is None else _with(answer, **{key: torch.full_like(old, value)})

    line = Boasts(sites.write_sites(federation, tmp_path, GROUPS))
    planned = plan(tmp_path, "fedavg", "mlp:6", rounds=1, metrics=["auroc", "brier"])
    table = train_sites(line, planned, tmp_path / "result").metrics["deployed"]["test_brier"]
    assert np.isfinite(np.array(table, dtype=float)).tolist() == [k >= len(GROUPS[0]) for k in range(len(table))]


def same_metrics(one: Any, other: Any, tolerance: float = 1e-8) -> None:
    for when, table in one.metrics.items():
        for key, values in table.items():
            theirs = np.array(other.metrics[when][key], dtype=float)
            assert np.allclose(np.array(values, dtype=float), theirs, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbn", "dfedu", "fedrelax", "local"])
def test_a_killed_server_goes_on_with_the_same_rows(name: str, federation: Federation, tmp_path: Path) -> None:
    """Killed in round 3, after the sites had trained; the sites go back to where they were after round 2."""
    paths, options = sites.write_sites(federation, tmp_path, GROUPS), {"rounds": 4, "checkpoint_every": 2}
    planned = plan(tmp_path, name, "bn-mlp:6", **options)
    whole = train_sites(sites.LoopLine(paths), planned, tmp_path / "whole")

    class Killed(sites.LoopLine):
        def send(self, messages: Any, limits: Any, timeout: float) -> Any:
            found = super().send(messages, limits, timeout)
            if any(m.head.get("shared", {}).get("round") == 3 and m.head["mark"] for m in messages.values()):
                raise KeyboardInterrupt  # nothing is caught or saved
            return found

    with pytest.raises(KeyboardInterrupt):
        train_sites(Killed(paths), planned, tmp_path / "killed")
    resumed = train_sites(sites.LoopLine(paths), planned, tmp_path / "killed")
    assert np.array_equal(resumed.rows, whole.rows)
    same_metrics(resumed, whole)


def test_a_site_that_goes_away_is_named_and_comes_back_as_another_node(federation: Federation, tmp_path: Path) -> None:
    class Moving(sites.LoopLine):
        def send(self, messages: Any, limits: Any, timeout: float) -> Any:
            rounds = {m.head.get("shared", {}).get("round") for m in messages.values()}
            if 2 in rounds and 1 in self.paths:
                self.paths[9] = self.paths.pop(1)
                self.away = {9}
                rest = {n: m for n, m in messages.items() if n != 1}
                return {**super().send(rest, limits, timeout), 1: "was killed"}
            if 3 in rounds:
                self.away = set()
            return super().send(messages, limits, timeout)

    line = Moving(sites.write_sites(federation, tmp_path, GROUPS))
    accepted = {"classes": [0, 1, 2], "accept": ["site-b"]}
    planned = plan(tmp_path, "fedavg", "mlp:6", rounds=4, federation=accepted, eval_every=4)
    result = train_sites(line, planned, tmp_path / "result")
    failed = [record["log"].get("failed", {}) for record in result.history]
    assert failed[0] == failed[3] == {}
    assert failed[1] == {"site-b": "was killed"}
    assert np.isfinite(result.rows).all()
    assert set(result.models) == set(federation.names)


class Bad(sites.LoopLine):
    """The site at node 1 answers a training task with something else."""

    def __init__(self, paths: Any, change: Any) -> None:
        super().__init__(paths)
        self.change = change

    def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
        if node == 1 and message.head.get("task") == "train" and message.head["shared"].get("commit", True):
            return self.change(answer)
        return answer.encode()


def _with(answer: Message, **arrays: torch.Tensor) -> tuple[str, bytes]:
    return Message(answer.head, {**answer.tensors, **{f"array/{k}": v for k, v in arrays.items()}}).encode()


BAD = {
    "NaN": (lambda a: _with(a, rows=a.tensors["array/rows"] * torch.nan), "sent NaN or infinity in 'rows'"),
    "a wrong shape": (lambda a: _with(a, rows=torch.zeros((1, 3), dtype=torch.float64)), "expected"),
    "too few rows": (lambda a: _with(a, loss=torch.zeros(4)), "for 1 clients"),
    "a huge payload": (lambda a: _with(a, extra=torch.zeros(2**20)), "what was asked allows"),
    "other arrays": (lambda a: _with(a, extra=torch.zeros(1)), "other arrays than most sites: extra"),
    "a strange type": (lambda a: _with(a, rows=torch.zeros((1, 3), dtype=torch.float16)), "which no task uses"),
    "rubbish": (lambda a: ("{", b"rubbish"), "cannot be read"),
    "no message": (lambda a: (None, None), "no message of fedkin"),
    "a head of another kind": (lambda a: Message({**a.head, "forgot": 7}, a.tensors).encode(), "is no answer"),
    "forgetting": (
        lambda a: Message({"answered": [], "forgot": ["site-b"]}).encode(),
        "forgot what nobody told it",
    ),
    "another client": (lambda a: Message({**a.head, "answered": ["site-a"]}, a.tensors).encode(), "not asked about"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_answer_is_set_aside_with_its_reason(what: str, federation: Federation, tmp_path: Path) -> None:
    change, reason = BAD[what]
    line = Bad(sites.write_sites(federation, tmp_path, GROUPS), change)
    result = train_sites(line, plan(tmp_path, "fedavg", "mlp:6", rounds=1), tmp_path / "result")
    failed = result.history[0]["log"]["failed"]
    assert set(failed) == {"site-b"}
    assert reason in failed["site-b"]
    assert np.isfinite(result.rows).all()


def test_a_round_whose_whole_cohort_lies_is_skipped(federation: Federation, tmp_path: Path) -> None:
    line = Bad(sites.write_sites(federation, tmp_path, GROUPS), BAD["rubbish"][0])
    planned = plan(tmp_path, "fedavg", "mlp:6", rounds=20, cohort=1, eval_every=20)
    result = train_sites(line, planned, tmp_path / "result")
    failed = [set(record["log"].get("failed", {})) for record in result.history]
    assert {"site-b"} in failed
    assert set() in failed
    assert len(failed) == 20


def test_a_site_that_tells_nothing_for_the_graph_has_no_neighbours(federation: Federation, tmp_path: Path) -> None:
    paths = sites.write_sites(federation, tmp_path, GROUPS)
    paths[1].write_text(paths[1].read_text().replace('statistics = "exact"', 'statistics = "none"'))
    planned = replace(plan(tmp_path, "fedpnp", "mlp:6"), graph="statistics")
    with pytest.warns(UserWarning, match="client 'site-b' told no statistics: refused.*it has no neighbours"):
        result = train_sites(sites.LoopLine(paths), planned, tmp_path / "result")
    alone = result.names.index("site-b")
    assert result.graph is not None
    assert (result.graph.degrees == 0).tolist() == [k == alone for k in range(len(federation))]
    assert not any(record["log"].get("failed") for record in result.history)


def test_who_lies_in_the_first_meeting_of_fedrelax_is_left_out(federation: Federation, tmp_path: Path) -> None:
    class Absent(sites.LoopLine):
        def tamper(self, node: int, message: Message, answer: Message) -> tuple[Any, Any]:
            return ("{", b"") if node == 1 and "choose" in message.head.get("task", "") else answer.encode()

    line = Absent(sites.write_sites(federation, tmp_path, GROUPS))
    result = train_sites(line, plan(tmp_path, "fedrelax", "mlp:6"), tmp_path / "result")
    assert all(set(record["log"]["failed"]) == {"site-b"} for record in result.history)
    others = [k for k, name in enumerate(result.names) if name != "site-b"]
    assert np.isfinite(np.array(result.metrics["deployed"]["test_accuracy"], dtype=float)[others]).sum() >= 4


def test_private_tensors_stay_on_the_sites_disk(federation: Federation, tmp_path: Path) -> None:
    """Local: nothing of a model reaches the server; every site has its own, with the accuracy that was reported."""
    order = [k for group in GROUPS for k in group]
    mine = here("local", federation.take(order), model="mlp:6")
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS, disclose=False))
    result = train_sites(line, plan(tmp_path, "local", "mlp:6"), tmp_path / "result")
    assert np.ptp(result.rows, axis=0).max() == 0  # the initial weights, for all
    same_metrics(result, mine)
    for path in sorted(tmp_path.glob("site-*/models/*.safetensors")):
        own = mine.models[path.stem].state_dict()
        assert all(torch.allclose(value, own[name]) for name, value in load_file(path).items())
    assert len(list(tmp_path.glob("site-*/models/*.json"))) == 6


def test_models_of_their_own(federation: Federation, tmp_path: Path) -> None:
    kinds = dict(zip(federation.names, ["tree:3", "ridge", "mlp:4", "tree:2", "boosting:5", "ridge"]))
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS, models=kinds))
    result = train_sites(line, plan(tmp_path, "fedrelax", "sites"), tmp_path / "result")
    order = [k for group in GROUPS for k in group]
    mine = fedkin.train(federation.take(order), kinds, contract.make("fedrelax"), rounds=3, seed=1, dtype="float64")
    for when in ("pre", "post"):
        ours, theirs = (np.array(r.metrics[when]["test_loss"], dtype=float) for r in (mine, result))
        assert np.allclose(ours, theirs, atol=1e-8, equal_nan=True)


def test_a_site_that_forgets_its_neighbours_is_named(federation: Federation, tmp_path: Path) -> None:
    """Its disk does not keep what the clients met with: one line says who and what to do."""

    class Forgetful(sites.LoopLine):
        def send(self, messages: Any, limits: Any, timeout: float) -> Any:
            for path in (tmp_path / "site-1" / "state").glob("*/recipe.*"):
                path.unlink()
            return super().send(messages, limits, timeout)

    line = Forgetful(sites.write_sites(federation, tmp_path, GROUPS))
    result = train_sites(line, plan(tmp_path, "fedrelax", "tree:3", rounds=2), tmp_path / "result")
    for record in result.history:
        failed = record["log"]["failed"]
        assert set(failed) == {"site-b"}
        assert re.search("forgot what it was told .* state folder", failed["site-b"])


def test_forecasts(tmp_path: Path) -> None:
    """A series at every site, in the manner of METR-LA: errors in its units, minutes ahead, as on one machine."""
    rng = np.random.default_rng(0)
    mean, std, parts = 54.0, 20.0, {"train": 24, "validation": 8, "test": 8}
    data = {f"site-{c}": {p: _windows(rng, n, mean, std) for p, n in parts.items()} for c in "abcdef"}
    task = Task("regression", (12,), output_shape=(6,), forecast=Forecast(mean, std, told=(5, 15, 30)))
    federation = replace(Federation.from_arrays(data, task="regression"), task=task)
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    settings = {"mean": mean, "std": std, "told": [5, 15, 30]}
    planned = plan(tmp_path, "fedavg", "linear", federation={"forecast": settings}, rounds=2)
    there = train_sites(line, planned, tmp_path / "result")
    mine = here("fedavg", federation.take([k for group in GROUPS for k in group]), model="linear", rounds=2)
    assert np.allclose(there.rows, mine.rows, rtol=0, atol=1e-9)
    assert {"test_mae_15", "validation_mae_15"} <= set(there.metrics["pre"])
    same_metrics(there, mine)
    with pytest.raises(FedkinError, match="forecast"):
        plan(tmp_path, "fedavg", "linear", federation={"forecast": {"mean": 1.0}})


def _windows(rng: np.random.Generator, n: int, mean: float, std: float) -> tuple[np.ndarray, np.ndarray]:
    """Twelve values and the six after them, as z-scores; a few were not measured (0)."""
    series = mean + 10 * np.sin(np.arange(n + 18) / 5) + rng.normal(size=n + 18)
    series[rng.integers(0, len(series), 3)] = 0.0
    scores = (series - mean) / std
    x, y = (np.stack([scores[i + a : i + b] for i in range(n)]) for a, b in ((0, 12), (12, 18)))
    return x, y


def test_a_site_forgets_old_runs_but_none_that_may_go_on(federation: Federation, tmp_path: Path) -> None:
    paths, state = sites.write_sites(federation, tmp_path, GROUPS), tmp_path / "site-0" / "state"
    for number in range(5):
        train_sites(sites.LoopLine(paths), plan(tmp_path, "scaffold", "mlr", rounds=1), tmp_path / f"result-{number}")
    kept = sorted(state.iterdir())
    assert len(kept) == 5
    for folder in kept[:4]:
        os.utime(folder, (0, 0))
    (state / "of-somebody-else").mkdir()
    train_sites(sites.LoopLine(paths), plan(tmp_path, "scaffold", "mlr", rounds=1), tmp_path / "another")
    assert len(list(state.glob("*/session"))) == 3
    assert (state / "of-somebody-else").exists()
    assert kept[4].exists()


def test_what_does_not_fit_is_named(federation: Federation, tmp_path: Path) -> None:
    paths = sites.write_sites(federation, tmp_path, GROUPS)
    np.savez(paths[1].parent / "site-b.npz", x=np.zeros((4, 7)), y=np.zeros(4, dtype=int))
    with pytest.raises(FedkinError, match=r"client 'site-b' has inputs of shape \[7\], but 'site-a' has \[5\]"):
        train_sites(sites.LoopLine(paths), plan(tmp_path, "fedavg", "mlr"), tmp_path / "result")
    (paths[1].parent / "site-b.npz").unlink()
    with pytest.raises(FedkinError, match=r"cannot take part: client 'site-b': .* cannot be read"):
        train_sites(sites.LoopLine(paths), plan(tmp_path, "fedavg", "mlr"), tmp_path / "result")
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    line.away = {2}
    with pytest.raises(FedkinError, match="2 of 3 sites were there after 2 s"):
        train_sites(line, plan(tmp_path, "fedavg", "mlr"), tmp_path / "result")


def test_a_site_imports_only_what_it_trusts(federation: Federation, tmp_path: Path) -> None:
    path = sites.write_sites(federation, tmp_path, GROUPS)[0]
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    train_sites(line, plan(tmp_path, "fedavg", "mlr", rounds=1), tmp_path / "result")
    setup = {"task": {"kind": "classification", "input_shape": [5], "classes": [0, 1, 2], "output_shape": [],
                      "tokens": False}, "model": "os:abort", "dtype": "float64", "seed": 0}  # fmt: skip
    head = {"kind": "answer", "run": "0a", "setup": setup, "task": "train", "clients": ["site-a"], "shared": {}}
    assert "does not trust 'os:abort'" in Site.read(path).handle(Message(head)).head["refused"]
    head = {**head, "setup": {**setup, "model": "mlr"}, "task": "antigravity:fly"}
    assert "does not trust 'antigravity:fly'" in Site.read(path).handle(Message(head)).head["refused"]
    head = {**head, "task": "train", "shared": {"effort": {"discrepancy": "os.path:join"}}}
    assert "does not trust 'os.path:join'" in Site.read(path).handle(Message(head)).head["refused"]
    head = {**head, "shared": {}, "run": "../../etc"}
    assert "not plain letters" in Site.read(path).handle(Message(head)).head["refused"]
    assert "does not know" in Site.read(path).handle(Message({"kind": "exec"})).head["refused"]


def test_messages_of_a_server_before_come_too_late(federation: Federation, tmp_path: Path) -> None:
    """A killed server's message may reach a site after its successor's: it must not touch the private state."""
    line = sites.LoopLine(sites.write_sites(federation, tmp_path, GROUPS))
    last: list[Message] = []
    send = line.send
    line.send = lambda messages, *rest: last.append(messages.get(0)) or send(messages, *rest)  # type: ignore[method-assign]
    train_sites(line, plan(tmp_path, "scaffold", "mlp:6", rounds=2), tmp_path / "result")
    (state,) = (tmp_path / "site-0" / "state").glob("*/current.safetensors")
    before, late = state.read_bytes(), next(m for m in last if m.head.get("task", "").endswith("scaffold"))
    late = Message({**late.head, "session": late.head["session"] - 1}, late.tensors)
    answer = Site.read(tmp_path / "site-0" / "site.toml").handle(late)
    assert "too late" in answer.head["refused"]
    assert state.read_bytes() == before
