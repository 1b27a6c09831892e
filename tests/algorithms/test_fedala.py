from __future__ import annotations

from math import ceil
from typing import Any

import pytest
import torch

from fedkin.algorithms.fedala import FedALA
from fedkin.algorithms.fedavg import FedAvg

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("cohort", [4, 3])
def test_four_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, cohort: int) -> None:
    """The gradient with respect to A by autograd of f(v + (w − v) ∘ A)."""
    method = FedALA(**SETTINGS, eta=5.0, share=0.6, first_passes=3)
    done = run(federation, "mlp:4", method, cohort=cohort, rounds=4)
    layout = done.setting.spec.layout
    upper = layout.mask(layout.under(["classifier"])).double()
    w, own, mixing, times = plain.initial, [plain.initial] * 4, [torch.ones_like(plain.initial)] * 4, [0] * 4
    for t in (1, 2, 3, 4):
        chosen, trained = method.cohort(t, cohort, done.setting), []
        for k in chosen:
            v, a, count = own[k] * upper + w * (1 - upper), mixing[k], [0, 3, 1, 1][times[k]]
            batches = plain.batches(k, method.model_copy(update={"epochs": max(count, 1)}), t, "mixing")
            per_epoch = ceil(plain.sizes[k] / 6)
            for number in range(count):
                for x, y in batches[number * per_epoch :][: ceil(0.6 * per_epoch)]:
                    a_ = a.clone().requires_grad_()
                    slope = torch.autograd.grad(plain.loss(v + (w - v) * a_, x, y), a_)[0]
                    a = (a - 5.0 * slope).clamp(0, 1)
            mixing[k], times[k] = a, times[k] + 1
            v = v + (w - v) * a
            for x, y in plain.batches(k, method, t):
                v = v - 0.1 * plain.gradient(v, x, y)
            own[k] = v
            trained.append(v * plain.sizes[k])
        w = sum(trained) / plain.sizes[chosen].sum()
    assert torch.allclose(done.state.rows[0], w, atol=1e-12)
    kept = done.clients.snapshot()
    assert torch.allclose(kept["ala_model"], torch.stack(own), atol=1e-12)
    assert torch.allclose(kept["ala_weights"], torch.stack(mixing)[:, upper > 0], atol=1e-12)
    assert (kept["ala_weights"] < 1).any()


@pytest.mark.parametrize("limit", [{"eta": 0}, {"head": []}])
def test_without_mixing_it_is_fedavg_and_fine_tuning(federation: Any, run: Any, models: Any, limit: Any) -> None:
    ours = run(federation, "bn-mlp:4", FedALA(**SETTINGS, **limit), rounds=3)
    theirs = run(federation, "bn-mlp:4", FedAvg(**SETTINGS), rounds=3)
    assert torch.equal(ours.state.rows, theirs.state.rows)
    assert torch.equal(models(ours), models(theirs))
