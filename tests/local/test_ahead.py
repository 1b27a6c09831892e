"""A look ahead saves the training of the next round and changes no number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import algorithms
from fedkin.federation import Federation
from fedkin.local import ahead, tasks
from fedkin.result import Result
from fedkin.run import make_run
from fedkin.run.options import make_options


def sites() -> Federation:
    rng = np.random.default_rng(0)
    data = {f"site-{k}": (rng.normal(size=(12, 4)), rng.integers(0, 3, 12)) for k in range(5)}
    return Federation.from_arrays(data, classes=[0, 1, 2])


def run(method: str, **options: Any) -> Result:
    parameters = {"lr": 0.1, "batch_size": 4}
    return fedkin.train(sites(), "bn-mlp:4", algorithms.make(method, parameters), rounds=6, **options)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedbn", "fedu", "scaffold", "ditto", "fedrep", "dfedu", "local", "fedska"]
)
@pytest.mark.parametrize("every", [1, 3])
def test_the_numbers_are_those_of_training_twice(monkeypatch: pytest.MonkeyPatch, method: str, every: int) -> None:
    once = run(method, eval_every=every)
    monkeypatch.setattr(ahead, "REMEMBERED_BYTES", -1)
    twice = run(method, eval_every=every)
    assert torch.equal(once.server_rows, twice.server_rows)
    assert torch.equal(once.models.rows, twice.models.rows)  # type: ignore[attr-defined]
    assert torch.equal(once.models.counters, twice.models.counters)  # type: ignore[attr-defined]
    assert once.metrics == twice.metrics
    for a, b in zip(once.history, twice.history):
        assert (a["log"], a.get("pre"), a.get("post"), a["bytes"]) == (
            b["log"],
            b.get("pre"),
            b.get("post"),
            b["bytes"],
        )


@pytest.mark.parametrize(
    ("options", "trainings"),
    [({"eval_every": 1}, 7), ({"eval_every": 3}, 7), ({"eval_every": 1, "fraction": 0.4, "post": "always"}, 12)],
)
def test_how_often_clients_train(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], trainings: int) -> None:
    calls = []
    train = tasks.train_chunks
    monkeypatch.setattr(tasks, "train_chunks", lambda *args, **more: calls.append(1) or train(*args, **more))
    run("fedavg", **options)
    assert len(calls) == trainings  # six rounds and the last look ahead; with other clients each look is of its own


def test_another_question_or_another_state_is_trained_for() -> None:
    made = make_run(sites(), "bn-mlp:4", algorithms.make("fedavg", {"lr": 0.1}), make_options(rounds=1))
    shard, ids = made.clients.shard, np.arange(5)  # type: ignore[attr-defined]
    rows = made.state.rows.contiguous()
    shared = {"sgd": {"lr": 0.1}, "round": 1, "private": ()}

    def ask(**changed: Any) -> tasks.Request:
        return tasks.Request(ids, {"rows": changed.pop("rows", rows)}, {**shared, **changed})

    def look() -> None:
        tasks.TASKS["train"](shard, ask(commit=False, evaluate=["test"]))

    look()
    assert ahead.recall(shard, "train", ask()) is not None
    assert ahead.recall(shard, "train", ask()) is None  # forgotten
    for other in (ask(round=2), ask(sgd={"lr": 0.2}), ask(rows=rows + 1), ask(rows=rows.double()), ask(mu=1.0)):
        look()
        assert ahead.recall(shard, "train", other) is None
    look()
    assert ahead.recall(shard, "other", ask()) is None
    look()
    shard.store["counters"] += 1
    assert ahead.recall(shard, "train", ask()) is None
    look()
    shard.store = {name: value.clone() for name, value in shard.store.items()}
    assert ahead.recall(shard, "train", ask()) is None
    made.clients.close()
