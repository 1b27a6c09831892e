"""Privacy noise is a client's secret, and answers with it add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fedkin import data
from fedkin.errors import FedkinError
from fedkin.graphs.statistics import moments, noisy_moments
from fedkin.local.shard import Shard
from fedkin.local.tasks import Request, find_task
from fedkin.models import ModelSpec
from fedkin.privacy.noise import secret_normal
from fedkin.streams import Streams

QUESTION = {"epsilon": 1.0, "delta": 1e-5, "low": -4.0, "high": 4.0}


def shard() -> Shard:
    federation = data.load("clusters", clients=3, seed=0, samples=40, dimension=2)
    return Shard(federation, ModelSpec.of("linear", federation.task, torch.float64), Streams(0))


def asked(held: Shard, **question: float) -> np.ndarray:
    return find_task("statistics")(held, Request(np.arange(3), shared=question))["statistics"].numpy()


def test_the_server_cannot_redraw_the_noise_from_the_seed() -> None:
    held = shard()
    told = asked(held, **QUESTION)
    for k, name in enumerate(held.names):
        x = held.train.of(k)[0].numpy()
        redrawn = noisy_moments(x, **QUESTION, generator=Streams(0).generator("statistics", name))  # type: ignore[arg-type]
        assert abs(told[k] - redrawn).max() > 1e-3
        assert abs(told[k] - moments(x)).max() > 1e-3
    assert abs(told - asked(shard(), **QUESTION)).max() > 1e-3


def test_the_same_question_gets_the_same_answer_and_another_one_spends() -> None:
    held = shard()
    held.privacy_limit = (1.5, 1e-4)
    first = asked(held, **QUESTION)
    assert np.array_equal(first, asked(held, **QUESTION))
    assert held.store["privacy_spent"].tolist() == [[1.0, 1e-5]] * 3
    with pytest.raises(FedkinError, match="has spent its privacy budget: with this answer ε = 2"):
        asked(held, **{**QUESTION, "high": 5.0})
    asked(held, **{**QUESTION, "epsilon": 0.5})
    assert held.store["privacy_spent"][:, 0].tolist() == [1.5] * 3


def test_secret_numbers_are_normal_and_never_the_same() -> None:
    drawn = secret_normal((20_000,))
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert not np.array_equal(drawn, secret_normal((20_000,)))
