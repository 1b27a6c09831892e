from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedkin.algorithms.afl import AFL, project_to_simplex
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}


def nearest_by_trying_all_supports(point: np.ndarray) -> np.ndarray:
    """Of all points that are zero off a support and sum to 1 on it, the nearest that is not negative."""
    best, distance = None, np.inf
    for size in range(1, len(point) + 1):
        for support in map(list, combinations(range(len(point)), size)):
            guess = np.zeros(len(point))
            guess[support] = point[support] - (point[support].sum() - 1) / size
            if guess.min() >= -1e-12 and ((guess - point) ** 2).sum() < distance:
                best, distance = guess, ((guess - point) ** 2).sum()
    assert best is not None
    return best


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
def test_projection_on_the_simplex(values: list[float]) -> None:
    point = np.array(values)
    projected = project_to_simplex(point)
    assert projected.sum() == pytest.approx(1)
    assert projected.min() >= 0
    assert np.allclose(projected, nearest_by_trying_all_supports(point), atol=1e-7)


@pytest.mark.parametrize("cohort", [None, 2])
def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, models: Any, cohort: int | None) -> None:
    """λ belongs to clients: with two of four taking part, only their entries rise before the projection."""
    method = AFL(**SETTINGS, gamma_lambda=0.2, average=True)
    done = run(federation, "mlp:4", method, cohort=cohort)
    w, mixture, iterates = plain.initial, np.full(4, 0.25), []
    for t in (1, 2):
        chosen = method.cohort(t, cohort or 4, done.setting)
        trained, risen = [], mixture.copy()
        for k in chosen:
            x, y = federation.train[k]
            risen[k] += 0.2 * float(plain.loss(w, torch.as_tensor(x), torch.as_tensor(y)))
            v = w
            for x, y in plain.batches(k, method, t):
                v = v - 0.1 * plain.gradient(v, x, y)
            trained.append(v * mixture[k])
        w = sum(trained) / mixture[chosen].sum()
        mixture = nearest_by_trying_all_supports(risen)
        iterates.append(w)
    assert torch.allclose(done.state.rows[0], w, atol=1e-12)
    assert np.allclose(done.state.arrays["mixture"].numpy(), mixture, atol=1e-12)
    assert torch.allclose(models(done, "pre")[0], sum(iterates) / 2, atol=1e-12)


def test_no_ascent_is_fedavg_with_equal_weights(federation: Any, plain: Any, run: Any, models: Any) -> None:
    done = run(federation, "mlp:4", AFL(**SETTINGS, gamma_lambda=0, average=False))
    w = plain.initial
    for t in (1, 2):
        trained = []
        for k in range(4):
            v = w
            for x, y in plain.batches(k, done.algorithm, t):
                v = v - 0.1 * plain.gradient(v, x, y)
            trained.append(v)
        w = sum(trained) / 4
    assert torch.allclose(models(done, "pre"), w.expand(4, -1), atol=1e-12)


def test_the_worst_client_does_better(federation: Any, plain: Any, run: Any) -> None:
    worst = []
    for gamma in (0.0, 0.2):
        row = run(federation, "mlp:4", AFL(lr=0.3, steps=1, gamma_lambda=gamma), rounds=80).state.rows[0]
        worst.append(max(float(plain.loss(row, torch.as_tensor(x), torch.as_tensor(y))) for x, y in federation.train))
    assert worst[1] < worst[0]


def test_nobody_with_a_say_leaves_the_model_alone(federation: Any, run: Any) -> None:
    """A huge step puts all weight on one client; rounds without it change nothing."""
    done = run(federation, "mlp:4", AFL(**SETTINGS, gamma_lambda=100.0), rounds=6, cohort=1)
    assert torch.isfinite(done.state.rows).all()


def test_parameters_out_of_range() -> None:
    with pytest.raises(FedkinError, match=r"afl: gamma_lambda = -1 is not allowed: .* greater than or equal to 0"):
        AFL(gamma_lambda=-1)
