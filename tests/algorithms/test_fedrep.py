from __future__ import annotations

from typing import Any

import pytest
import torch

from fedkin.algorithms.fedrep import FedRep

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, models: Any, weights: Any) -> None:
    method = FedRep(**SETTINGS, epochs=2, head_epochs=3, weights=weights)
    counts = plain.sizes if weights == "size" else plain.sizes * 0 + 1
    done = run(federation, "mlp:4", method)
    layout = done.setting.spec.layout
    head = layout.mask(layout.under(["classifier"])).double()
    own = [plain.initial] * 4
    for t in (1, 2):
        for k in range(4):
            first = method.model_copy(update={"epochs": 3})
            for x, y in plain.batches(k, first, t, "head"):
                own[k] = own[k] - 0.1 * plain.gradient(own[k], x, y) * head
            for x, y in plain.batches(k, method, t):
                own[k] = own[k] - 0.1 * plain.gradient(own[k], x, y) * (1 - head)
        body = sum(row * n for row, n in zip(own, counts)) / counts.sum()
        own = [row * head + body * (1 - head) for row in own]
    assert torch.allclose(models(done, "pre"), torch.stack(own), atol=1e-12)


def test_without_head_epochs_heads_stay_where_they_were(federation: Any, run: Any, models: Any) -> None:
    done = run(federation, "mlp:4", FedRep(**SETTINGS, head_epochs=0))
    layout = done.setting.spec.layout
    head = layout.mask(layout.under(["classifier"]))
    assert len(torch.unique(models(done)[:, head], dim=0)) == 1
    assert len(torch.unique(models(done)[:, ~head], dim=0)) == 4
