from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.fedrod import FedRoD
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, models: Any, weight_decay: float) -> None:
    """Two heads on one body, written with modules and autograd as in the paper."""
    method = FedRoD(**SETTINGS, weight_decay=weight_decay)
    done = run(federation, "mlp:4", method, cohort=3)
    heads = []
    for _ in range(4):
        heads.append(nn.Linear(4, 3).double())
        nn.init.zeros_(heads[-1].weight)
        nn.init.zeros_(heads[-1].bias)
    w = plain.initial
    for t in (1, 2):
        chosen, trained = method.cohort(t, 3, done.setting), []
        for k in chosen:
            counts = torch.as_tensor(np.bincount(federation.train[k][1], minlength=3)).double()
            net = plain.spec.module(w).train()
            both = [torch.optim.SGD(part.parameters(), lr=0.1, weight_decay=weight_decay) for part in (net, heads[k])]
            for x, y in plain.batches(k, method, t):
                z = net.features(x)
                generic = net.classifier(z)
                loss = nn.functional.cross_entropy(generic + counts.clamp(min=1e-9).log(), y)
                own = nn.functional.cross_entropy(generic.detach() + heads[k](z.detach()), y)
                for optimiser in both:
                    optimiser.zero_grad()
                (loss + own).backward()
                for optimiser in both:
                    optimiser.step()
            trained.append(plain.spec.layout.pack(net, torch.float64) * plain.sizes[k])
        w = sum(trained) / plain.sizes[chosen].sum()
    assert torch.allclose(done.state.rows[0], w, atol=1e-12)
    kept = done.clients.snapshot()["personal_head"]
    for k in range(4):
        assert torch.allclose(kept[k], torch.cat([heads[k].weight.reshape(-1), heads[k].bias]), atol=1e-12)
    assert not torch.allclose(models(done, "pre"), models(done, "post"))


def test_without_balance_the_generic_model_is_fedavg(federation: Any, run: Any) -> None:
    ours = run(federation, "bn-mlp:4", FedRoD(**SETTINGS, momentum=0.5, balanced=False))
    theirs = run(federation, "bn-mlp:4", FedAvg(**SETTINGS, momentum=0.5))
    assert torch.allclose(ours.state.rows, theirs.state.rows, atol=1e-12)


def test_a_regression_has_no_classes_to_balance(build: Any, run: Any) -> None:
    federation = build(kind="regression")
    ours, theirs = (run(federation, "mlp:4", m(**SETTINGS)) for m in (FedRoD, FedAvg))
    assert torch.allclose(ours.state.rows, theirs.state.rows, atol=1e-12)


def test_a_head_that_is_not_linear_is_refused(federation: Any, run: Any) -> None:
    with pytest.raises(FedkinError, match="fedrod needs a network that ends in one linear layer with a bias"):
        run(federation, "linear", FedRoD())
