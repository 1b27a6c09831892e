"""Every network of the catalogue trains on natural sets at the default rate: nobody diverges, the loss falls."""

from __future__ import annotations

import numpy as np
import pytest

from fedkin import FedkinError, algorithms, data, train
from fedkin.models import NETWORKS, build_network

pytestmark = [pytest.mark.slow, pytest.mark.real_data]

SETS = ("heart", "vehicle", "parkinsons", "fmi")


@pytest.mark.parametrize("name", SETS)
def test_every_network_trains_at_the_default_rate(name: str) -> None:
    federation = data.load(name, seed=0)
    tried = []
    for network in NETWORKS:
        try:
            build_network(network, federation.task)
        except FedkinError:
            continue  # made for another kind of task
        for method in ("local", "fedavg"):
            result = train(federation, network, algorithms.make(method, {}), rounds=6, seed=0, eval_every=6)
            losses = [record["log"]["train_loss"] for record in result.history.records]
            own = np.array(result.metrics["deployed"]["test_loss"], dtype=float)
            assert not any(record["log"].get("failed") for record in result.history.records), (network, method)
            assert losses[-1] < losses[0], (network, method, losses)
            assert np.isfinite(own).all(), (network, method)
            assert own.max() < 100, (network, method, own.max())
        tried.append(network)
    assert tried
