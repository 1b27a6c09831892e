from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkin.algorithms.fedproto import FedProto
from fedkin.algorithms.local import Local
from fedkin.errors import FedkinError
from fedkin.federation import Federation

SETTINGS = {"lr": 0.1, "batch_size": 6}


def missing_a_class() -> Federation:
    """Two classes on each of three clients; nobody in the cohort of one round need hold all."""
    rng, told = np.random.default_rng(5), {}
    for k, labels in enumerate([(0, 1), (1, 2), (0, 2), (1, 0)]):
        y = np.resize(labels, 14 + 3 * k)
        told[f"c{k}"] = (np.eye(3, 5)[y] * 2 + rng.normal(size=(len(y), 5)), y)
    return Federation.from_arrays(told, classes=[0, 1, 2], test_fraction=0.25)


@pytest.mark.parametrize("cohort", [4, 2])
def test_three_rounds_of_the_plain_loop(plain: Any, run: Any, models: Any, cohort: int) -> None:
    federation, method = missing_a_class(), FedProto(**SETTINGS, lam=0.7)
    plain = type(plain)(federation, "mlp:4")
    done = run(federation, "mlp:4", method, cohort=cohort, rounds=3)
    nets = [plain.spec.module(plain.initial).train() for _ in range(4)]
    prototypes: dict[int, torch.Tensor] = {}

    def trained(k: int, t: int) -> None:
        optimiser = torch.optim.SGD(nets[k].parameters(), lr=0.1)
        for x, y in plain.batches(k, method, t):
            optimiser.zero_grad()
            h = nets[k].features(x)
            loss = nn.functional.cross_entropy(nets[k].classifier(h), y)
            for feature, label in zip(h, y.tolist()):
                if label in prototypes:
                    loss = loss + 0.7 * nn.functional.mse_loss(feature, prototypes[label]) / len(y)
            loss.backward()
            optimiser.step()

    for t in (1, 2, 3):
        told: dict[int, list[torch.Tensor]] = {}
        chosen = method.cohort(t, cohort, done.setting)
        for k in chosen:
            trained(k, t)
            x, y = federation.train[k]
            for feature, label in zip(nets[k].features(torch.as_tensor(x)).detach(), y.tolist()):
                told.setdefault(label, []).append(feature)  # a mean over all samples: weighted by class counts
        prototypes |= {label: torch.stack(found).mean(dim=0) for label, found in told.items()}
    for label, centre in prototypes.items():
        assert torch.allclose(done.state.arrays["prototypes"][label], centre, atol=1e-12)
    for k in range(4):
        trained(k, 4)  # what *post* looks ahead to
        x = torch.as_tensor(federation.test[k][0])
        h = nets[k].features(x).detach()
        nearest = [min(prototypes, key=lambda c: float((f - prototypes[c]).norm())) for f in h]
        assert done.setting.spec.module(models(done)[k])(x).argmax(dim=1).tolist() == nearest


def test_no_pull_and_the_own_head_is_local(federation: Any, run: Any, models: Any) -> None:
    ours = run(federation, "bn-mlp:4", FedProto(**SETTINGS, lam=0, predict="head"), rounds=3)
    alone = run(federation, "bn-mlp:4", Local(**SETTINGS), rounds=3)
    assert torch.allclose(models(ours), models(alone), atol=1e-12)


def test_only_prototypes_travel(federation: Any, run: Any) -> None:
    done = run(federation, "mlp:4", FedProto(**SETTINGS))
    assert done.clients.traffic.down == 2 * 4 * (3 * 4 * 8 + 3), "C·d numbers and which classes are known"


def test_a_task_without_classes_is_refused(build: Any, run: Any) -> None:
    with pytest.raises(FedkinError, match="a prototype for each class, but this task has none"):
        run(build(kind="regression"), "mlp:4", FedProto())
