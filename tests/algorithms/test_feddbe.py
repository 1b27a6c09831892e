from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.feddbe import FedDBE
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize(("cohort", "weight_decay"), [(4, 0.0), (3, 0.1)])
def test_three_rounds_of_the_plain_loop(
    federation: Any, plain: Any, run: Any, models: Any, cohort: int, weight_decay: float
) -> None:
    """The vector before the head and the pull of the mean feature, written with modules and autograd."""
    method = FedDBE(**SETTINGS, kappa=2.0, weight_decay=weight_decay)
    done = run(federation, "mlp:4", method, cohort=cohort, rounds=3)
    w, vectors, mean = plain.initial, [nn.Parameter(torch.zeros(4, dtype=torch.float64)) for _ in range(4)], None

    def trained(k: int, t: int) -> nn.Module:
        net = plain.spec.module(w).train()
        optimiser = torch.optim.SGD([*net.parameters(), vectors[k]], lr=0.1, weight_decay=weight_decay)
        for x, y in plain.batches(k, method, t):
            optimiser.zero_grad()
            z = net.features(x)
            loss = nn.functional.cross_entropy(net.classifier(z if mean is None else z + vectors[k]), y)
            if mean is not None:
                loss = loss + 2.0 * 0.5 * nn.functional.mse_loss(z.mean(dim=0), mean)
            loss.backward()
            optimiser.step()
        return net

    for t in (1, 2, 3):
        chosen = method.cohort(t, cohort, done.setting)
        nets = {k: trained(k, t) for k in chosen}
        n = plain.sizes[chosen].sum()
        w = sum(plain.spec.layout.pack(nets[k], torch.float64) * plain.sizes[k] for k in chosen) / n
        if mean is None:
            inputs = {k: torch.as_tensor(federation.train[k][0]) for k in chosen}
            mean = sum(nets[k].features(inputs[k]).sum(dim=0).detach() for k in chosen) / n
    assert torch.allclose(done.state.arrays["common_mean"], mean, atol=1e-12)
    assert torch.allclose(done.state.rows[0], w, atol=1e-12)
    assert torch.allclose(done.clients.snapshot()["domain_bias"], torch.stack(list(vectors)), atol=1e-12)
    for k in range(4):
        net, x = trained(k, 4), torch.as_tensor(federation.test[k][0])
        wanted = net.classifier(net.features(x) + vectors[k])
        assert torch.allclose(done.setting.spec.module(models(done)[k])(x), wanted, atol=1e-10)


def test_the_first_round_is_fedavg(federation: Any, run: Any) -> None:
    ours, theirs = (run(federation, "bn-mlp:4", m(**SETTINGS), rounds=1) for m in (FedDBE, FedAvg))
    assert torch.equal(ours.state.rows, theirs.state.rows)


def test_a_pull_brings_the_clients_mean_features_together(federation: Any, run: Any) -> None:
    """Under the trained models, before the vectors are added."""
    apart = []
    for kappa in (0.0, 5.0):
        done = run(federation, "mlp:4", FedDBE(**{**SETTINGS, "epochs": 1}, kappa=kappa), rounds=30)
        rows, spec = done.final["post"]["model"], done.setting.spec
        inputs = [torch.as_tensor(federation.train[k][0]) for k in range(4)]
        means = torch.stack([spec.module(rows[k]).features(x).mean(dim=0).detach() for k, x in enumerate(inputs)])
        apart.append(float((means - means.mean(dim=0)).norm()))
    assert apart[1] < 0.5 * apart[0]


def test_a_layer_that_the_head_does_not_read_is_refused(federation: Any, run: Any) -> None:
    with pytest.raises(FedkinError, match="the head reads another layer"):
        run(federation, "mlp:4,3", FedDBE(features="features.2"))
