"""A run ends with points of every client's curves: of the models that are deployed, and nothing but points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedkin
from fedkin.task.curves import FALSE_POSITIVES


@pytest.fixture(scope="module")
def federation() -> fedkin.Federation:
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(4):
        x = rng.normal(size=(80, 3))
        clients[f"site-{k}"] = x, (x[:, 0] + rng.normal(size=80) > 0).astype(int)
    clients["one class"] = rng.normal(size=(20, 3)), np.zeros(20, dtype=int)
    return fedkin.Federation.from_arrays(clients, classes=[0, 1])


@pytest.mark.parametrize("method", ["local", "fedavg", "ditto", "fedrelax", "ifca"])
def test_areas_are_those_of_the_deployed_models(federation: fedkin.Federation, method: str, tmp_path: Path) -> None:
    graph = "complete" if method == "fedrelax" else None
    result = fedkin.train(federation, "mlr", method, graph, rounds=3, seed=0, metrics=["auroc"], out=tmp_path / "run")
    roc, calibration = result.extras["roc"], result.extras["calibration"]
    assert roc.shape == (5, len(FALSE_POSITIVES) + 1)
    values = np.array(result.metrics["deployed"]["test_auroc"])
    assert np.allclose(roc[:4, -1], values[:4])
    assert (roc[4] == -1).all()
    assert torch.allclose(calibration[:, 0].sum(dim=1), torch.ones(5, dtype=torch.float64))
    again = fedkin.load(tmp_path / "run")
    assert torch.equal(again.extras["roc"], roc)


def test_auto_tells_both_alone_and_together(federation: fedkin.Federation) -> None:
    result = fedkin.auto(federation, "mlr", effort="quick", rounds=3, seed=0)
    name = result.names[0]
    x, y = federation.test[0]
    with torch.no_grad():
        chances = torch.softmax(result.models[name](torch.from_numpy(x).float()), dim=1)[:, 1].numpy()
    assert float(result.extras["roc"][0, -1]) == pytest.approx(roc_auc_score(y, chances), abs=1e-6)
    assert result.extras["alone_roc"].shape == result.extras["roc"].shape


def test_numbers_and_private_training_tell_no_curves(federation: fedkin.Federation) -> None:
    privacy = {"level": "sample", "epsilon": 5, "delta": 1e-5, "clip": 1.0}
    told = fedkin.train(federation, "mlr", "fedavg", rounds=1, privacy=privacy).extras
    assert "roc" not in told
    rng = np.random.default_rng(0)
    numbers = {f"s{k}": (rng.normal(size=(20, 2)), rng.normal(size=20)) for k in range(2)}
    assert "roc" not in fedkin.train(fedkin.Federation.from_arrays(numbers), "linear", "fedavg", rounds=1).extras
