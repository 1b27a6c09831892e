from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.knnper import KNNPer
from fedkin.errors import FedkinError
from fedkin.federation import Federation

SETTINGS = {"lr": 0.1, "batch_size": 6}


def with_validation() -> Federation:
    rng, told = np.random.default_rng(3), {}
    for k in range(3):
        x = rng.normal(size=(36, 5)) + (k % 2)
        y = ((x[:, 0] * (-1) ** k > 0).astype(int) + (x[:, 1] > 0)).astype(int)
        told[f"c{k}"] = {
            part: (x[a:b], y[a:b]) for part, a, b in (("train", 0, 20), ("validation", 20, 28), ("test", 28, 36))
        }
    return Federation.from_arrays(told, classes=[0, 1, 2])


def chance(net: Any, memory: list[tuple[Any, int]], x: Any, k: int, scale: float, share: float) -> list[float]:
    """The probabilities of one sample by the paper's formula, one memory at a time."""
    h = net.features(x[None])[0]
    near = sorted(((float((h - other).square().sum().sqrt()), label) for other, label in memory), key=lambda m: m[0])[
        :k
    ]
    total = sum(exp(-d / scale) for d, _ in near)
    model = torch.softmax(net(x[None])[0], dim=0).tolist()
    votes = [sum(exp(-d / scale) for d, label in near if label == c) / total if near else 0.0 for c in range(3)]
    share = share if near else 0.0
    return [(1 - share) * p + share * v for p, v in zip(model, votes)]


@pytest.mark.parametrize("validation", [True, False])
def test_the_mixture_by_the_formula(build: Any, run: Any, models: Any, validation: bool) -> None:
    """λ by log-loss on validation samples, or on training samples with their own memory left out."""
    federation = with_validation() if validation else build()
    done = run(federation, "mlp:4", KNNPer(**SETTINGS, neighbours=4, scale=0.7), rounds=3)
    theirs = run(federation, "mlp:4", FedAvg(**SETTINGS), rounds=3)
    for k in range(len(federation)):
        net = theirs.setting.spec.module(theirs.state.rows[k])
        x, y = federation.train[k]
        with torch.no_grad():
            memory = [(net.features(torch.as_tensor(x[i : i + 1]))[0], int(y[i])) for i in range(len(x))]
            held, labels = federation.validation[k] if validation else federation.train[k]
            scores = []
            for share in np.linspace(0, 1, 11):
                losses = []
                for i in range(len(held)):
                    others = memory if validation else memory[:i] + memory[i + 1 :]
                    p = chance(net, others, torch.as_tensor(held[i]), 4, 0.7, share)[int(labels[i])]
                    losses.append(-log(max(p, 2.3e-308)))
                scores.append(np.mean(losses))
            best = np.linspace(0, 1, 11)[int(np.argmin(scores))]
            whole = done.setting.spec.module(models(done)[k])
            assert float(whole.share) == pytest.approx(best)
            for sample in federation.test[k][0]:
                wanted = chance(net, memory, torch.as_tensor(sample), 4, 0.7, best)
                found = torch.softmax(whole(torch.as_tensor(sample)[None])[0], dim=0)
                assert found.tolist() == pytest.approx(wanted, abs=1e-9)


def test_rounds_are_those_of_fedavg_and_no_more_travels(federation: Any, run: Any) -> None:
    ours = run(federation, "bn-mlp:4", KNNPer(**SETTINGS, momentum=0.5), cohort=3, rounds=3)
    theirs = run(federation, "bn-mlp:4", FedAvg(**SETTINGS, momentum=0.5), cohort=3, rounds=3)
    shared = ours.setting.shared_columns(ours.algorithm.private(ours.setting))
    assert torch.equal(ours.state.rows[:, shared], theirs.state.rows)
    assert ours.clients.traffic == theirs.clients.traffic


def test_no_votes_is_fedavg(federation: Any) -> None:
    ours, theirs = (
        fedkin.train(federation, "mlp:4", m, rounds=2, seed=4, dtype="float64")
        for m in (KNNPer(**SETTINGS, lam=0), FedAvg(**SETTINGS))
    )
    assert np.allclose(ours.metrics["post"]["test_loss"], theirs.metrics["pre"]["test_loss"], atol=1e-12)


def test_the_nearest_memory_alone_knows_its_own_samples(federation: Any, run: Any, models: Any) -> None:
    done = run(federation, "mlp:8", KNNPer(**SETTINGS, neighbours=1, lam=1), rounds=1)
    for k in range(4):
        x, y = federation.train[k]
        with torch.no_grad():
            assert done.setting.spec.module(models(done)[k])(torch.as_tensor(x)).argmax(dim=1).tolist() == y.tolist()


def test_a_memory_is_no_larger_than_its_capacity(federation: Any, run: Any, models: Any) -> None:
    done = run(federation, "mlp:4", KNNPer(**SETTINGS, capacity=8), rounds=1)
    held = [int(done.setting.spec.module(row).held.sum()) for row in models(done)]
    assert held == [min(8, n) for n in federation.train.sizes]


def test_a_model_of_ones_own_is_saved_with_its_memory(federation: Any, tmp_path: Any) -> None:
    from torch import nn

    def own() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    before = fedkin.train(federation, own, KNNPer(**SETTINGS, features="1"), rounds=1, seed=4, out=tmp_path / "run")
    after = fedkin.load(tmp_path / "run", own)
    x = torch.as_tensor(federation.test[0][0], dtype=torch.float32)
    assert torch.equal(before.models["site-0"](x), after.models["site-0"](x))


def test_a_task_without_classes_is_refused(build: Any, run: Any) -> None:
    with pytest.raises(FedkinError, match="vote on classes, but this task has none"):
        run(build(kind="regression"), "mlp:4", KNNPer())
