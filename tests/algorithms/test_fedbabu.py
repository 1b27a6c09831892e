from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.fedbabu import FedBABU

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("tune", ["all", "head", "body"])
def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, models: Any, tune: str) -> None:
    method = FedBABU(**SETTINGS, epochs=2, tune_epochs=3, tune=tune)
    done = run(federation, "mlp:4", method, cohort=3)
    layout = done.setting.spec.layout
    head = layout.mask(layout.under(["classifier"])).double()
    w = plain.initial
    for t in (1, 2):
        chosen, trained = method.cohort(t, 3, done.setting), []
        for k in chosen:
            v = w
            for x, y in plain.batches(k, method, t):
                v = v - 0.1 * plain.gradient(v, x, y) * (1 - head)
            trained.append(v * plain.sizes[k])
        w = sum(trained) / plain.sizes[chosen].sum()
    assert torch.allclose(models(done, "pre"), w.expand(4, -1), atol=1e-12)
    assert torch.equal(w[head > 0], plain.initial[head > 0])
    moves = {"all": 1.0, "head": head, "body": 1 - head}[tune]
    for k in range(4):
        v = w
        for x, y in plain.batches(k, method.model_copy(update={"epochs": 3}), 3):
            v = v - 0.1 * plain.gradient(v, x, y) * moves
        assert torch.allclose(models(done)[k], v, atol=1e-12)


def test_without_a_head_it_is_fedavg(federation: Any, run: Any) -> None:
    ours, theirs = (run(federation, "bn-mlp:4", m) for m in (FedBABU(**SETTINGS, head=[]), FedAvg(**SETTINGS)))
    assert torch.equal(ours.state.rows, theirs.state.rows)


def test_the_head_does_not_travel(federation: Any, run: Any) -> None:
    done = run(federation, "mlp:4", FedBABU(**SETTINGS))
    layout = done.setting.spec.layout
    body = int((~layout.mask(layout.under(["classifier"]))).sum())
    assert done.clients.traffic.down == 2 * 4 * body * 8
