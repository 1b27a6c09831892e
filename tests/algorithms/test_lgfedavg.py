from __future__ import annotations

from typing import Any

import torch

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.lgfedavg import LGFedAvg
from fedkin.algorithms.local import Local

SETTINGS = {"lr": 0.1, "batch_size": 6}


def test_three_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, models: Any) -> None:
    method = LGFedAvg(**SETTINGS)
    done = run(federation, "mlp:4", method, cohort=3, rounds=3)
    layout = done.setting.spec.layout
    columns = layout.mask(layout.under(["classifier"])).double()
    own, head = [plain.initial] * 4, plain.initial
    for t in (1, 2, 3):
        chosen, trained = method.cohort(t, 3, done.setting), []
        for k in chosen:
            v = own[k] * (1 - columns) + head * columns
            for x, y in plain.batches(k, method, t):
                v = v - 0.1 * plain.gradient(v, x, y)
            own[k] = v
            trained.append(v * plain.sizes[k])
        head = sum(trained) / plain.sizes[chosen].sum()
    wanted = torch.stack([row * (1 - columns) + head * columns for row in own])
    assert torch.allclose(models(done, "pre"), wanted, atol=1e-12)


def test_all_head_is_fedavg(federation: Any, run: Any) -> None:
    ours, theirs = (run(federation, "mlr", m(**SETTINGS), cohort=3) for m in (LGFedAvg, FedAvg))
    assert torch.equal(ours.state.rows, theirs.state.rows)


def test_without_a_head_it_is_local(federation: Any, run: Any, models: Any) -> None:
    ours = run(federation, "bn-mlp:4", LGFedAvg(**SETTINGS, head=[]), rounds=3)
    alone = run(federation, "bn-mlp:4", Local(**SETTINGS), rounds=3)
    assert torch.equal(models(ours), models(alone))


def test_only_the_head_travels(federation: Any, run: Any) -> None:
    done = run(federation, "mlp:4", LGFedAvg(**SETTINGS))
    layout = done.setting.spec.layout
    assert done.clients.traffic.down == 2 * 4 * 8 * int(layout.mask(layout.under(["classifier"])).sum())
