from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.algorithms.perfedavg import PerFedAvg

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize(("hessian_free", "weights"), [(False, "equal"), (False, "size"), (True, "equal")])
def test_two_rounds_of_the_plain_loop(
    federation: Any, plain: Any, run: Any, models: Any, hessian_free: bool, weights: Any
) -> None:
    method = PerFedAvg(**SETTINGS, alpha=0.2, hessian_free=hessian_free, weights=weights)
    counts = plain.sizes if weights == "size" else plain.sizes * 0 + 1
    done = run(federation, "mlp:4", method, cohort=3)
    w = plain.initial
    for t in (1, 2):
        chosen, trained = method.cohort(t, 3, done.setting), []
        for k in chosen:
            v = w
            drawn = [plain.batches(k, method, t, p) for p in ("batches", "batches outer", "batches bend")]
            for (x, y), (x2, y2), (x3, y3) in zip(*drawn):
                u = v - 0.2 * plain.gradient(v, x, y)
                g = plain.gradient(u, x2, y2)
                if hessian_free:
                    hessian = torch.autograd.functional.hessian(lambda row, x=x3, y=y3: plain.loss(row, x, y), v)
                    g = g - 0.2 * hessian @ g
                v = v - 0.1 * g
            trained.append(v * counts[k])
        w = sum(trained) / counts[chosen].sum()
    assert torch.allclose(done.state.rows[0], w, atol=1e-8 if hessian_free else 1e-12)
    for k in range(len(federation)):
        x, y = plain.batches(k, method, 3)[0]
        assert torch.allclose(
            models(done)[k], done.state.rows[k] - 0.2 * plain.gradient(done.state.rows[k], x, y), atol=1e-12
        )


def test_no_personal_step_is_fedavg_on_the_outer_batches(federation: Any, plain: Any, run: Any, models: Any) -> None:
    done = run(federation, "mlp:4", PerFedAvg(**SETTINGS, alpha=0, hessian_free=True, weights="size"), rounds=1)
    trained = []
    for k in range(len(federation)):
        v = plain.initial
        for x, y in plain.batches(k, done.algorithm, 1, "batches outer"):
            v = v - 0.1 * plain.gradient(v, x, y)
        trained.append(v * plain.sizes[k])
    assert torch.allclose(done.state.rows[0], sum(trained) / plain.sizes.sum(), atol=1e-12)
    assert torch.equal(models(done, "post"), models(done, "pre"))


def test_both_passes_move_running_statistics(federation: Any, run: Any) -> None:
    done = run(federation, "bn-mlp:4", PerFedAvg(lr=0.1, epochs=1, batch_size=100), rounds=3)
    assert (done.clients.snapshot()["counters"] == 6).all()


@pytest.mark.parametrize("hessian_free", [False, True])
def test_with_dropout_it_repeats_itself(federation: Any, run: Any, hessian_free: bool) -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(8, 3))

    method = PerFedAvg(**SETTINGS, hessian_free=hessian_free)
    rows = [run(federation, net, method).state.rows for _ in range(2)]
    assert torch.equal(*rows)
    assert np.isfinite(rows[0].numpy()).all()
    assert rows[0].abs().max() < 5, "both ends of the central difference must see the same dropout"
