from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.algorithms.local import Local
from fedkin.algorithms.mrmtl import MRMTL

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("model", ["mlp:4", "bn-mlp:4"])
def test_no_pull_is_local(federation: Any, run: Any, models: Any, model: str) -> None:
    ours = run(federation, model, MRMTL(**SETTINGS, momentum=0.5, lam=0), rounds=3)
    alone = run(federation, model, Local(**SETTINGS, momentum=0.5), rounds=3)
    assert torch.allclose(models(ours), models(alone), atol=1e-12)


@pytest.mark.parametrize("cohort", [4, 3])
def test_three_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, cohort: int) -> None:
    """The penalty's gradient by autograd."""
    method = MRMTL(**SETTINGS, lam=0.8)
    done = run(federation, "mlp:4", method, cohort=cohort, rounds=3)
    mean, own = plain.initial, [plain.initial] * 4
    for t in (1, 2, 3):
        chosen = method.cohort(t, cohort, done.setting)
        for k in chosen:
            for x, y in plain.batches(k, method, t):
                w = own[k].clone().requires_grad_()
                loss = plain.loss(w, x, y) + 0.4 * (w - mean).square().sum()
                own[k] = own[k] - 0.1 * torch.autograd.grad(loss, w)[0]
        mean = sum(own[k] for k in chosen) / cohort
    assert torch.allclose(done.state.rows, mean.expand(4, -1), atol=1e-12)
    assert torch.allclose(done.clients.snapshot()["personal"], torch.stack(own), atol=1e-12)


def test_a_strong_pull_makes_one_model(federation: Any, run: Any, models: Any) -> None:
    spread = []
    for lam in (0.0, 5.0, 9.9):
        found = models(run(federation, "mlp:4", MRMTL(lr=0.1, batch_size=100, lam=lam), rounds=40))
        spread.append(float((found - found.mean(dim=0)).norm()))
    assert spread[0] > 5 * spread[1] > 5 * spread[2]
    assert np.isfinite(spread).all()
