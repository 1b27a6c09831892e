from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.algorithms.ditto import Ditto
from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.local import Local

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("model", ["mlp:4", "bn-mlp:4"])
def test_no_pull_is_local(federation: Any, run: Any, models: Any, model: str) -> None:
    ours = run(federation, model, Ditto(**SETTINGS, momentum=0.5, lam=0), rounds=3)
    alone = run(federation, model, Local(**SETTINGS, momentum=0.5), rounds=3)
    assert torch.allclose(models(ours), models(alone), atol=1e-12)
    assert torch.equal(ours.final["post"]["counters"], alone.final["post"]["counters"])


def test_the_global_model_is_fedavg(federation: Any, run: Any) -> None:
    ours, theirs = run(federation, "mlp:4", Ditto(**SETTINGS)), run(federation, "mlp:4", FedAvg(**SETTINGS))
    assert torch.equal(ours.state.rows, theirs.state.rows)


def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any) -> None:
    method = Ditto(**SETTINGS, lam=0.8)
    done = run(federation, "mlp:4", method, cohort=3)
    w, own = plain.initial, [plain.initial] * len(federation)
    for t in (1, 2):
        chosen, trained = method.cohort(t, 3, done.setting), []
        for k in chosen:
            v, u = own[k], w
            for x, y in plain.batches(k, method, t):
                v = v - 0.1 * (plain.gradient(v, x, y) + 0.8 * (v - w))
                u = u - 0.1 * plain.gradient(u, x, y)
            own[k] = v
            trained.append(u * plain.sizes[k])
        w = sum(trained) / plain.sizes[chosen].sum()
    assert torch.allclose(done.state.rows[0], w, atol=1e-12)
    assert torch.allclose(done.clients.snapshot()["personal"], torch.stack(own), atol=1e-12)


def test_the_penalty_pulls_by_lambda_times_the_distance(federation: Any, run: Any, models: Any) -> None:
    """After round 1 v ≠ w; one full-batch step from there differs between two λ by −γ Δλ (v − w)."""
    found = []
    for lam in (0.0, 0.5):
        done = run(federation, "mlp:4", Ditto(lr=0.1, epochs=1, batch_size=100, lam=lam), rounds=1)
        found.append((models(done), done.clients.snapshot()["personal"], done.state.rows))
    (free, v, w), (pulled, same, _) = found
    assert torch.allclose(v, same, atol=1e-12), "in round 1 v starts at w: one step feels no pull"
    assert torch.allclose(pulled - free, -0.1 * 0.5 * (v - w), atol=1e-12)
    assert (v - w).norm() > 0.01
