from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.local import Local
from fedkin.algorithms.oracle import Oracle
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}


def test_one_cluster_is_fedavg_and_one_each_is_local(federation: Any, run: Any, models: Any) -> None:
    one = run(federation, "bn-mlp:4", Oracle(**SETTINGS, clusters=["x"] * 4), cohort=3)
    assert torch.allclose(
        one.state.rows, run(federation, "bn-mlp:4", FedAvg(**SETTINGS), cohort=3).state.rows, atol=1e-12
    )
    each = run(federation, "bn-mlp:4", Oracle(**SETTINGS, clusters=np.arange(4)))
    assert torch.equal(models(each, "pre"), models(run(federation, "bn-mlp:4", Local(**SETTINGS)), "pre"))


def test_clusters_do_not_meet(federation: Any, run: Any) -> None:
    """The true clusters are sites 0, 2 and 1, 3: each is FedAvg among its own."""
    both = run(federation, "mlp:4", Oracle(**SETTINGS))
    for members in ([0, 2], [1, 3]):
        apart = run(federation.take(members), "mlp:4", FedAvg(**SETTINGS))
        assert torch.allclose(both.state.rows[members], apart.state.rows, atol=1e-12)
    influence = both.state.arrays["influence"]
    assert influence[0, 1] == 0
    assert influence[0, 2] > 0


def test_names_and_order_say_the_same(federation: Any, run: Any) -> None:
    by_name = Oracle(**SETTINGS, clusters={"site-3": 1, "site-0": 0, "site-1": 1, "site-2": 0})
    assert torch.equal(
        run(federation, "mlp:4", by_name).state.rows, run(federation, "mlp:4", Oracle(**SETTINGS)).state.rows
    )


@pytest.mark.parametrize(
    ("clusters", "truth", "message"),
    [
        (None, {}, "true clusters of this federation are unknown; pass clusters="),
        ({"site-0": 1}, {}, "no label for client 'site-1'"),
        ([1, 2, 3], {}, "3 labels for 4 clients"),
    ],
)
def test_missing_labels(federation: Any, run: Any, clusters: Any, truth: Any, message: str) -> None:
    from dataclasses import replace

    with pytest.raises(FedkinError, match=message):
        run(replace(federation, truth=truth), "mlp:4", Oracle(clusters=clusters))
