"""Errors of forecasts: by hand, with missing values, through a run, and for persistence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin.errors import FedkinError
from fedkin.federation import Federation, Split
from fedkin.local.forecasts import forecast_errors, forecast_names, persistence
from fedkin.task import Forecast, Task

FORECAST = Forecast(mean=50.0, std=10.0)


def make_federation(dead: bool = False, seed: int = 0) -> Federation:
    """Two sensors, 12 past → 12 coming speeds; a few values are missing, and all of a dead sensor's."""
    rng = np.random.default_rng(seed)
    parts = []
    for k in range(2):
        values = 50 + 10 * np.sin(0.3 * np.arange(120)[:, None] + 0.3 * np.arange(24) + k) + rng.normal(size=(120, 24))
        values[rng.random(values.shape) < 0.15] = 0
        if dead and k:
            values[:, 12:] = 0
        scores = (values - 50) / 10
        parts.append((scores[:, :12], scores[:, 12:]))
    train, validation, test = (
        Split.join([(x[a:b], y[a:b]) for x, y in parts]) for a, b in ((0, 80), (80, 80), (80, 120))
    )
    return Federation(
        ("s-0", "s-1"), Task("regression", (12,), output_shape=(12,), forecast=FORECAST), train, validation, test
    )


def test_errors_by_hand() -> None:
    targets = torch.full((1, 3, 12), 1.0, dtype=torch.float64)  # 60
    targets[0, 1, 2] = -5.0  # 0: missing
    outputs = targets.clone()
    outputs[0, 0, 2], outputs[0, 1, 2], outputs[0, 2, 2] = 1.6, 9.9, 0.2  # off by 6, (missing), −8
    found = forecast_errors(FORECAST, outputs, targets, torch.tensor([[True, True, True]]))
    assert float(found["mae_15"]) == pytest.approx(7)
    assert float(found["mape_15"]) == pytest.approx(7 / 60)
    assert float(found["rmse_15"]) == pytest.approx(50**0.5)
    assert found["mae_15_count"].tolist() == [2]
    assert found["mae_60_count"].tolist() == [3]
    assert float(found["rmse_30"]) == 0
    padded = forecast_errors(FORECAST, outputs, targets, torch.tensor([[True, True, False]]))
    assert float(padded["mae_15"]) == pytest.approx(6)
    nothing = forecast_errors(FORECAST, outputs, targets, torch.tensor([[False, False, False]]))
    assert float(nothing["mae_15"]) == 0
    assert nothing["mae_15_count"].tolist() == [0]
    assert list(found) == forecast_names(Task("regression", (12,), output_shape=(12,), forecast=FORECAST))


def test_short_horizons_and_no_missing_value() -> None:
    task = Task("regression", (12,), output_shape=(4,), forecast=Forecast(0.0, 1.0, missing=None))
    assert forecast_names(task) == [f"{e}_15{c}" for e in ("mae", "mape", "rmse") for c in ("", "_count")]
    found = forecast_errors(task.forecast, torch.ones(1, 2, 4), torch.zeros(1, 2, 4), torch.ones(1, 2).bool())
    assert float(found["mae_15"]) == 1
    assert forecast_names(Task("regression", (12,))) == []


def test_a_run_reports_them_like_an_independent_count(tmp_path: Path) -> None:
    federation = make_federation()
    result = fedkin.train(federation, "mlp:8", "local", rounds=2, out=tmp_path / "run")
    for k, name in enumerate(federation.names):
        x, y = federation.test[k]
        with torch.no_grad():
            guess = result.models[name](torch.as_tensor(x, dtype=torch.float32)).numpy() * 10 + 50
        truth = y * 10 + 50
        for minutes, step in ((15, 2), (30, 5), (60, 11)):
            there = np.abs(truth[:, step]) > 1e-6
            if not there.any():
                assert np.isnan(result.metrics["deployed"][f"test_mae_{minutes}"][k])
                continue
            error = guess[there, step] - truth[there, step]
            told = result.metrics["deployed"]
            assert told[f"test_mae_{minutes}"][k] == pytest.approx(np.abs(error).mean(), rel=1e-4)
            assert told[f"test_rmse_{minutes}"][k] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-4)
            assert told[f"test_mape_{minutes}"][k] == pytest.approx(np.abs(error / truth[there, step]).mean(), rel=1e-4)
    assert not any(key.endswith("count") for key in result.metrics["pre"])
    assert fedkin.load(tmp_path / "run").task == federation.task


def test_a_sensor_without_values_has_no_error_and_is_not_set_aside() -> None:
    result = fedkin.train(make_federation(dead=True), "mlp:8", "fedavg", rounds=1)
    told = result.metrics["post"]["test_mae_15"]
    assert np.isfinite(told[0])
    assert np.isnan(told[1])
    assert "failed" not in result.history[-1]["log"]


def test_persistence() -> None:
    federation = make_federation()
    found = persistence(federation)
    x, y = federation.test[1]
    past, coming = x * 10 + 50, y[:, 2] * 10 + 50
    last = np.array([line[np.abs(line) > 1e-6][-1] for line in past])
    there = np.abs(coming) > 1e-6
    assert found.loc["s-1", "mae_15"] == pytest.approx(np.abs(last - coming)[there].mean())
    assert np.isnan(persistence(make_federation(dead=True)).loc["s-1", "mae_15"])
    plain = Federation.from_arrays({"a": (np.zeros((8, 3)), np.zeros(8))})
    with pytest.raises(FedkinError, match="needs a forecasting task"):
        persistence(plain)


def test_metr_la_is_a_forecast(real_data: Path) -> None:
    federation = fedkin.data.load("metr-la", clients=3, stride=20, seed=0)
    assert federation.task.forecast is not None
    assert federation.task.forecast.mean == pytest.approx(float(federation.truth["mean"][0]))
    steady = persistence(federation)
    assert (steady["mae_15"] < steady["mae_60"]).all()
    method = fedkin.algorithms.Local(lr=0.1, batch_size=16)
    before = fedkin.train(federation, "gru-forecaster:16,1", method, rounds=0).metrics["deployed"]["test_mae_15"]
    after = fedkin.train(federation, "gru-forecaster:16,1", method, rounds=8).metrics["deployed"]["test_mae_15"]
    assert np.mean(after) < 0.8 * np.mean(before)


def test_an_lstm_reads_shakespeare(real_data: Path) -> None:
    federation = fedkin.data.load("tiny-shakespeare", clients=3, stride=20, seed=0)
    assert federation.task.tokens
    method = fedkin.algorithms.FedAvg(lr=1.0, batch_size=16)
    result = fedkin.train(federation, "lstm-text:32", method, rounds=3)
    assert result.summary("pre")["mean"] > 0.1, "always saying the commonest character gives about 0.18, chance 0.01"
