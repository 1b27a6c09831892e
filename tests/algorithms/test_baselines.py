"""What all the baselines promise: any model, regression, own state that only moves with its client, no look at test data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedkin import algorithms
from fedkin.errors import FedkinError
from fedkin.federation import Split

NAMES = [
    *("perfedavg", "pfedme", "scaffold", "afl", "pfedbayes", "ditto"),
    *("oracle", "fedper", "fedrep", "fedamp", "apfl", "ifca", "fedsem", "fedcedar"),
]
SMALL: dict[str, dict[str, Any]] = {
    "pfedme": {"lr": 0.5},
    "fedrep": {"head_epochs": 1},
    "pfedbayes": {"inner_steps": 1},
    **{name: {"clusters": 2} for name in ("ifca", "fedsem", "fedcedar")},
}


def make(name: str) -> Any:
    return algorithms.make(name, {"lr": 0.02, "epochs": 1, "batch_size": 6, **SMALL.get(name, {})})


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 3))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", [convolutional, with_dropout], ids=["convolution", "dropout"])
def test_any_model_and_some_of_the_clients(federation: Any, run: Any, name: str, model: Any) -> None:
    first, second = (run(federation, model, make(name), cohort=2, workers=workers) for workers in (1, 2))
    assert torch.allclose(first.final["post"]["model"], second.final["post"]["model"], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_regression(build: Any, run: Any, name: str) -> None:
    data = build((40, 30, 35, 28), "regression")
    before, after = (
        run(data, "mlp:6", make(name), rounds=rounds).final["post"]["test_mse"].mean() for rounds in (1, 25)
    )
    assert after < before


@pytest.mark.parametrize("name", NAMES)
def test_personalisation_never_looks_at_test_samples(federation: Any, run: Any, name: str) -> None:
    other = replace(
        federation, test=Split(-3 * federation.test.x, (federation.test.y + 1) % 3, federation.test.offsets)
    )
    honest, changed = (run(data, "mlp:4", make(name)) for data in (federation, other))
    for when in ("pre", "post"):
        assert torch.equal(honest.final[when]["model"], changed.final[when]["model"])
    assert not torch.equal(honest.final["post"]["test_loss"], changed.final["post"]["test_loss"])


@pytest.mark.parametrize("name", ["scaffold", "pfedbayes", "ditto", "fedper", "fedrep", "apfl"])
def test_private_state_moves_only_with_its_client(federation: Any, run: Any, name: str) -> None:
    """After one round of two clients the other two have the state they began with; looking ahead leaves no trace."""
    method = make(name)
    done = run(federation, "mlp:4", method, rounds=1, cohort=2, post="always")
    took_part = np.isin(np.arange(4), method.cohort(1, 2, done.setting))
    for key, value in done.clients.snapshot().items():
        if key not in ("counters", "alpha"):  # APFL's share has no slope in the round where v = w
            idle = value[torch.from_numpy(~took_part)]
            assert torch.equal(idle[0], idle[1]), key
            assert not torch.equal(value[torch.from_numpy(took_part)][0], idle[0]), key


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_diverges_keeps_the_state_it_had(build: Any, run: Any, name: str) -> None:
    """One sensor sends absurd numbers: its answers are set aside, and no NaN stays behind anywhere."""
    data = build((20, 20, 20, 20), "regression")
    x = data.train.x.copy()
    x[data.train.offsets[1] : data.train.offsets[2]] *= 1e300
    done = run(replace(data, train=Split(x, data.train.y, data.train.offsets)), "mlp:4", make(name), rounds=2)
    assert "site-1" in done.state.log["failed"]
    assert torch.isfinite(done.state.rows).all()
    for key, value in done.clients.snapshot().items():
        assert torch.isfinite(value.double()).all(), key


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(name: str, value: float) -> None:
    method = algorithms.get(name)
    numbers = [key for key, info in method.model_fields.items() if isinstance(info.default, float)]
    assert "lr" in numbers
    for key in numbers:
        with pytest.raises(FedkinError, match=f"{name}: {key} = {value} is not allowed"):
            method(**{key: value})
