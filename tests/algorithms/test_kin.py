from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.algorithms.kin import Kin, kin_weights, weights_of

SIZES = np.array([[10, 20, 30]])
OWN = np.array([40])


def test_equal_losses_give_the_weights_of_fedavg() -> None:
    found = kin_weights(np.full((1, 3), 0.7), np.array([0.1]), SIZES, OWN)
    assert np.allclose(found, [[0.4, 0.1, 0.2, 0.3]])


def test_weights_by_hand() -> None:
    """T = 1, 1.5, 3: m = 1, median 1.5, s = 0.2, so τ = 0.1 + 0.05."""
    found = kin_weights(np.array([[1.0, 1.5, 3.0]]), np.array([0.2]), SIZES, OWN)
    raw = np.array([40, 10, 20 * np.exp(-0.5 / 0.15), 30 * np.exp(-2 / 0.15)])
    assert np.allclose(found, raw / raw.sum())


@pytest.mark.parametrize("peers", [1, 20])
def test_whoever_diverged_is_nobodys_candidate_and_stays_alone(federation: Any, run: Any, peers: int) -> None:
    method = Kin(peers=peers)
    done = run(federation, "mlp:4", method, rounds=1)
    models = done.state.rows.clone()
    models[1] = torch.nan
    begun = method.start(done.setting)
    state = method.estimated(begun, models, done.clients, done.setting.everyone, done.setting)
    weights = weights_of(state).toarray()
    assert np.isfinite(weights).all()
    assert np.allclose(weights.sum(axis=1), 1)
    assert (weights[[0, 2, 3], 1] == 0).all()
    assert weights[1, 1] == 1
    assert weights[0, 0] < 1, "the others found each other"
