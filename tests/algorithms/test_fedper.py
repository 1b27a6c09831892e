from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.fedper import FedPer
from fedkin.algorithms.fedrep import FedRep
from fedkin.algorithms.local import Local
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}
BOTH = pytest.mark.parametrize("method", [FedPer, FedRep])


@BOTH
def test_without_a_head_it_is_fedavg(federation: Any, run: Any, method: Any) -> None:
    alike = {**SETTINGS, "epochs": 1}
    by_size = {"weights": "size"} if method is FedRep else {}
    both = method(**alike, **by_size, head=[]), FedAvg(**alike)
    ours, theirs = (run(federation, "bn-mlp:4", m, cohort=3) for m in both)
    assert torch.equal(ours.state.rows, theirs.state.rows)


def test_all_head_is_local(federation: Any, run: Any, models: Any) -> None:
    """mlr is a classifier and nothing else."""
    ours, alone = (
        run(federation, "mlr", FedPer(**SETTINGS), rounds=3),
        run(federation, "mlr", Local(**SETTINGS), rounds=3),
    )
    for when in ("pre", "post"):
        assert torch.equal(models(ours, when), models(alone, when))


@BOTH
def test_the_head_never_leaves(federation: Any, run: Any, models: Any, method: Any) -> None:
    done = run(federation, "mlp:4", method(**SETTINGS))
    layout = done.setting.spec.layout
    head = layout.mask(layout.under(["classifier"]))
    received = models(done, "pre")
    assert torch.equal(received[:, ~head], received[:1, ~head].expand(4, -1)), "one body for all"
    assert len(torch.unique(received[:, head], dim=0)) == 4, "a head each"
    assert torch.equal(done.state.rows[:, head], models(run(federation, "mlp:4", FedAvg(), rounds=0), "pre")[:, head])
    values = int((~head).sum())
    assert done.clients.traffic.down == 2 * 4 * values * 8


def test_the_last_layer_is_the_head_of_a_foreign_model(federation: Any, run: Any) -> None:
    done = run(federation, lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), FedPer(**SETTINGS))
    assert FedPer().private(done.setting) == ("2.weight", "2.bias")


def test_an_unknown_head_is_refused(federation: Any, run: Any) -> None:
    with pytest.raises(
        FedkinError, match="unknown module of the model for the head 'clasifier'; did you mean 'classifier'"
    ):
        run(federation, "mlp:4", FedPer(head=["clasifier"]))
