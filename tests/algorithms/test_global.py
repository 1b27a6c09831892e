"""Global: exactly central SGD on the union of all training samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedkin
from fedkin import Federation, Result, algorithms
from fedkin.local.batches import plan_batches
from fedkin.streams import Streams

Global = algorithms.get("global")


@pytest.fixture
def federation() -> Federation:
    rng = np.random.default_rng(0)
    clients = {}
    for k, n in enumerate((20, 9, 14, 5)):
        y = np.concatenate([np.arange(3), rng.integers(0, 3, n)])[:n]
        clients[f"site-{k}"] = (np.eye(3, 5)[y] * 2 + rng.normal(size=(n, 5)), y)
    return Federation.from_arrays(clients, classes=[0, 1, 2], test_fraction=0.25)


def train(federation: Federation, method: Any, **options: Any) -> Result:
    settings: dict[str, Any] = {"rounds": 2, "seed": 3, "dtype": "float64", "model": "bn-mlp:6", **options}
    return fedkin.train(federation, settings.pop("model"), method, **settings)


def test_it_is_torch_sgd_on_the_union(federation: Federation) -> None:
    """One nn.Module, one torch.optim.SGD, the pooled samples; batch norm included."""
    method = Global(lr=0.1, epochs=2, batch_size=7, momentum=0.5, weight_decay=0.01)
    start = train(federation, method, rounds=0)
    module = start.models["site-0"].train()
    x, y = torch.tensor(federation.train.x), torch.tensor(federation.train.y)
    for round in (1, 2):
        word = np.array([Streams(3).integer("pool", round)], dtype=np.uint64)
        plan = plan_batches(word, np.array([len(x)]), np.zeros(1, dtype=np.int64), 7, 2, None, torch.float64)
        assert sorted(plan.index[0, : -(-len(x) // 7)][plan.weight[0, : -(-len(x) // 7)] > 0].tolist()) == list(
            range(len(x))
        )
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
        for step in range(int(plan.steps[0])):
            chosen = plan.index[0, step][plan.weight[0, step] > 0]
            module.train(len(chosen) > 1)
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[chosen]), y[chosen]).backward()
            optimiser.step()
    found = train(federation, method)
    for name, value in module.state_dict().items():
        for client in federation.names:
            torch.testing.assert_close(found.models[client].state_dict()[name], value, atol=1e-10, rtol=0)


def test_everyone_has_the_same_model_and_nothing_travels(federation: Federation) -> None:
    result = train(federation, Global(lr=0.1))
    assert (np.ptp(result.rows, axis=0) == 0).all()
    assert result.facts["bytes"] == 0


def test_the_test_on_the_union_is_the_weighted_mean(federation: Federation) -> None:
    result = train(federation, Global(lr=0.1), rounds=5, global_test=True)
    model = result.models["site-0"]
    with torch.no_grad():
        right = (model(torch.tensor(federation.test.x)).argmax(dim=1).numpy() == federation.test.y).mean()
    assert result.summary("deployed")["weighted"] == pytest.approx(right)
    assert result.facts["global"]["pre"] == pytest.approx([right] * 4)


def test_influence_is_each_clients_share_of_the_samples(federation: Federation) -> None:
    influence = train(federation, Global(lr=0.1)).influence
    shares = federation.train.sizes / federation.train.sizes.sum()
    np.testing.assert_allclose(influence, np.tile(shares, (4, 1)))


def test_a_cohort_pools_its_own_samples(federation: Federation) -> None:
    """With one client in the cohort a round is local training of that client, whose samples alone shape the model."""
    result = train(federation, Global(lr=0.1), rounds=1, cohort=1, model="mlr")
    assert result.raw_influence is not None
    assert (result.raw_influence[0] > 0).sum() == 1


def test_it_is_reached_by_name() -> None:
    from fedkin.algorithms import Global as imported

    assert imported is Global is algorithms.get("global")
    assert algorithms.make("global", {"lr": 0.1}).lr == 0.1
