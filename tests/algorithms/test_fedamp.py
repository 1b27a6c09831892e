from __future__ import annotations

from math import exp
from typing import Any

import pytest
import torch

from fedkin.algorithms.fedamp import FedAMP, attend
from fedkin.algorithms.local import Local
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}


def weights(m: int = 5) -> torch.Tensor:
    return torch.randn((m, 7), dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 3


def test_attention_by_the_formula() -> None:
    w, found = weights(), attend(weights(), alpha=0.8, sigma=9.0)
    for i in range(5):
        others = 0.0
        for j in range(5):
            if i != j:
                share = 0.8 / 4 * exp(-float(((w[i] - w[j]) ** 2).sum()) / 9.0)
                assert found[i, j] == pytest.approx(share, rel=1e-12)
                others += share
        assert found[i, i] == pytest.approx(1 - others)


def test_attention_is_convex_and_does_not_depend_on_the_scale() -> None:
    found = attend(weights(), alpha=1.0, sigma=None)
    assert torch.allclose(found.sum(dim=1), torch.ones(5, dtype=torch.float64))
    assert found.min() >= 0
    assert torch.allclose(attend(1000 * weights(), alpha=1.0, sigma=None), found)
    assert torch.equal(attend(weights(1), 0.5, None), torch.ones((1, 1), dtype=torch.float64))
    assert torch.isfinite(attend(torch.ones(3, 4), 0.5, None)).all(), "clients that are all alike"


def test_no_attention_is_local(federation: Any, run: Any, models: Any) -> None:
    ours = run(federation, "bn-mlp:4", FedAMP(**SETTINGS, alpha=0, mu=0), rounds=3)
    alone = run(federation, "bn-mlp:4", Local(**SETTINGS), rounds=3)
    for when in ("pre", "post"):
        assert torch.allclose(models(ours, when), models(alone, when), atol=1e-12)


def test_equal_attention_is_the_plain_average(federation: Any, plain: Any, run: Any) -> None:
    done = run(federation, "mlp:4", FedAMP(**SETTINGS, alpha=3 / 4, sigma=1e15, mu=0), rounds=1)
    trained = []
    for k in range(4):
        v = plain.initial
        for x, y in plain.batches(k, done.algorithm, 1):
            v = v - 0.1 * plain.gradient(v, x, y)
        trained.append(v)
    assert torch.allclose(done.state.rows, (sum(trained) / 4).expand(4, -1), atol=1e-12)


def test_those_who_sit_out_keep_their_cloud_model(federation: Any, run: Any) -> None:
    method = FedAMP(**SETTINGS)
    done = run(federation, "mlp:4", method, rounds=1, cohort=2)
    out = [k for k in range(4) if k not in method.cohort(1, 2, done.setting)]
    assert torch.equal(done.state.rows[out[0]], done.setting.spec.initial_row(done.setting.streams))


def test_parameters_out_of_range() -> None:
    with pytest.raises(FedkinError, match=r"fedamp: alpha = 1.5 is not allowed: .* less than or equal to 1"):
        FedAMP(alpha=1.5)
