from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin.algorithms.fedfomo import FedFomo
from fedkin.algorithms.local import Local
from fedkin.federation import Federation

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.mark.parametrize("cohort", [None, 3])
def test_two_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any, cohort: int | None) -> None:
    """Everybody tries everybody; the clients have no validation samples, so losses are those of the training samples."""
    method = FedFomo(**SETTINGS, peers=3)
    done = run(federation, "mlp:4", method, cohort=cohort)
    rows, likes = [plain.initial] * 4, np.zeros((4, 4))
    for t in (1, 2):
        chosen, trained = method.cohort(t, cohort or 4, done.setting), {}
        for k in chosen:
            w = rows[k]
            for x, y in plain.batches(k, method, t):
                w = w - 0.1 * plain.gradient(w, x, y)
            trained[k] = w
        after = list(rows)
        for i in chosen:
            x, y = map(torch.as_tensor, federation.train[i])
            before = plain.loss(rows[i], x, y)
            gains = {
                j: max(0.0, float((before - plain.loss(w, x, y)) / (w - rows[i]).norm())) for j, w in trained.items()
            }
            total = sum(gains.values())
            if total > 0:
                after[i] = sum(gain / total * trained[j] for j, gain in gains.items())
                for j, gain in gains.items():
                    likes[i, j] += gain / total
        rows = after
    assert torch.allclose(done.state.rows, torch.stack(rows), atol=1e-10)
    assert np.allclose(done.state.arrays["likes"].numpy(), likes, atol=1e-10)
    assert (likes > 0).sum() > 4, "some learned from others"


def test_without_candidates_it_is_local(federation: Any, run: Any, models: Any) -> None:
    ours = run(federation, "bn-mlp:4", FedFomo(**SETTINGS, peers=0))
    alone = run(federation, "bn-mlp:4", Local(**SETTINGS))
    assert torch.allclose(models(ours), models(alone), atol=1e-12)


def test_a_client_that_nothing_helps_goes_back(federation: Any, run: Any) -> None:
    done = run(federation, "mlp:4", FedFomo(lr=1000.0, batch_size=6, peers=0), rounds=1)
    start = done.setting.spec.initial_row(done.setting.streams)
    assert torch.equal(done.state.rows, start.expand(4, -1))


def test_losses_are_those_of_validation_samples(run: Any) -> None:
    """Labels held back are the others' labels: whoever follows its validation samples goes their way."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    y = (x[:, 0] > 0).astype(int)
    told = {
        name: {"train": (x, labels), "validation": (x, held), "test": (x, labels)}
        for name, labels, held in [("a", y, 1 - y), ("b", 1 - y, 1 - y)]
    }
    federation = Federation.from_arrays(told)
    done = run(federation, "mlr", FedFomo(lr=0.5, batch_size=10, peers=1), rounds=1)
    assert done.state.arrays["likes"][0].tolist() == [0.0, 1.0]


def test_the_best_liked_are_tried_and_sometimes_others(build: Any, run: Any) -> None:
    done = run(build((9, 9, 9, 9, 9, 9)), "mlr", FedFomo(peers=2), rounds=0)
    likes = np.array([[0, 0, 5, 0, 4, 0.0]] * 6)
    greedy, curious = FedFomo(peers=2, epsilon=0), FedFomo(peers=2, epsilon=1)
    assert greedy.candidates(likes, np.arange(6), 1, done.setting)[0].tolist() == [2, 4]
    tried = {tuple(curious.candidates(likes, np.arange(6), t, done.setting)[0]) for t in range(30)}
    assert len(tried) > 5
    assert all(0 not in pair for pair in tried), "never itself"
