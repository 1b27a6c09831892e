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


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_four_rounds_of_the_plain_loop(build: Any, plain: Any, run: Any, kind: str) -> None:
    """Everybody tries everybody after rounds 1 and 2; before the first estimate all are alone."""
    federation = build((26, 11, 18, 9, 14), kind=kind)
    method, plain = Kin(lr=0.1, batch_size=6, alone=0.25, stages=2), type(plain)(federation, "mlp:4")
    assert method.estimates(4) == {1, 2}
    done = run(federation, "mlp:4", method, rounds=4)

    def losses(row: torch.Tensor, i: int) -> np.ndarray:
        """One number for each training sample of client i."""
        x, y = (
            torch.as_tensor(part, dtype=None if part.dtype.kind == "i" else torch.float64)
            for part in federation.train[i]
        )
        each = np.array([float(plain.loss(row, x[s : s + 1], y[s : s + 1])) for s in range(len(y))])
        return np.minimum(each, 6) if kind == "classification" else each

    sizes, rows, shares = federation.train.sizes, [plain.initial] * 5, np.eye(5)
    for t in (1, 2, 3, 4):
        trained = []
        for k in range(5):
            w = rows[k]
            for x, y in plain.batches(k, method, t):
                w = w - 0.1 * plain.gradient(w, x, y)
            trained.append(w)
        for i in range(5) if t in (1, 2) else ():
            told = {j: losses(trained[j], i) for j in range(5) if j != i}
            mean = {j: own.mean() for j, own in told.items()}
            best = min(mean, key=lambda j: mean[j])
            noise = [(own - told[best]).std(ddof=1) / len(own) ** 0.5 for j, own in told.items() if j != best]
            tau = 0.5 * np.median(noise) + (np.median([*mean.values()]) - mean[best]) / 10
            raw = sizes * np.exp(-(np.array([mean.get(j, mean[best]) for j in range(5)]) - mean[best]) / tau)
            shares[i] = raw / raw.sum()
        rows = [sum(float(shares[i, j]) * trained[j] for j in range(5)) for i in range(5)]
    assert torch.allclose(done.state.rows, torch.stack(rows), atol=1e-9)
    assert np.allclose(weights_of(done.state).toarray(), shares, atol=1e-9)
    assert shares.max() < 0.99, "some learn from others"


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
