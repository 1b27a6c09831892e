from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.scaffold import Scaffold
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6, "epochs": 2}


@pytest.mark.parametrize(("cohort", "global_lr"), [(None, 1.0), (2, 0.7)])
def test_two_rounds_of_the_plain_loop(
    federation: Any, plain: Any, run: Any, cohort: int | None, global_lr: float
) -> None:
    method = Scaffold(**SETTINGS, global_lr=global_lr)
    done = run(federation, "mlp:4", method, cohort=cohort)
    n, w = len(federation), plain.initial
    c, own = torch.zeros_like(w), [torch.zeros_like(w)] * len(federation)
    for t in (1, 2):
        chosen = method.cohort(t, cohort or n, done.setting)
        moves, changes = [], []
        for k in chosen:
            v, steps = w.clone(), 0
            for x, y in plain.batches(k, method, t):
                v = v - 0.1 * (plain.gradient(v, x, y) - own[k] + c)
                steps += 1
            assert steps == 2 * -(-plain.sizes[k] // 6)
            new = own[k] - c + (w - v) / (steps * 0.1)
            moves.append(v - w)
            changes.append(new - own[k])
            own[k] = new
        w = w + global_lr * sum(moves) / len(moves)
        c = c + len(chosen) / n * sum(changes) / len(changes)
    assert torch.allclose(done.state.rows, w.expand(n, -1), atol=1e-10)
    assert torch.allclose(done.state.arrays["control"], c, atol=1e-10)
    assert torch.allclose(done.clients.snapshot()["control"], torch.stack(own), atol=1e-10)


def test_one_client_is_sgd(build: Any, run: Any) -> None:
    alone = build((30,))
    ours, plain = run(alone, "mlp:4", Scaffold(**SETTINGS), rounds=3), run(alone, "mlp:4", FedAvg(**SETTINGS), rounds=3)
    assert torch.allclose(ours.state.rows, plain.state.rows, atol=1e-12)


def test_the_servers_control_is_the_mean_of_the_clients(federation: Any, run: Any) -> None:
    done = run(federation, "bn-mlp:4", Scaffold(**SETTINGS), rounds=3, cohort=2)
    control = done.clients.snapshot()["control"]
    assert control.shape == (4, done.setting.spec.layout.n_parameters), "buffers have no controls"
    assert torch.allclose(done.state.arrays["control"], control.mean(dim=0), atol=1e-12)


def test_costs_twice_the_bytes_of_fedavg(federation: Any, run: Any) -> None:
    spent = [run(federation, "mlp:4", m).clients.traffic.total() for m in (Scaffold(**SETTINGS), FedAvg(**SETTINGS))]
    assert spent[0] == pytest.approx(2 * spent[1], rel=0.1)


def test_momentum_is_refused() -> None:
    with pytest.raises(
        FedkinError, match=r"scaffold: momentum = 0.9 is not allowed: input should be less than or equal to 0"
    ):
        Scaffold(momentum=0.9)
    assert np.isclose(Scaffold().momentum, 0)
