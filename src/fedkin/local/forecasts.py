"""Errors of forecasts in the units of the data, so many minutes ahead: MAE, MAPE and RMSE, missing values left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.task import Forecast, Task

if TYPE_CHECKING:
    import pandas as pd

ERRORS = ("mae", "mape", "rmse")


def forecast_names(task: Task) -> list[str]:
    """The names of the errors that are told of a task's forecasts, and of their counts; none for other tasks."""
    forecast = task.forecast
    if forecast is None:
        return []
    told = [minutes for minutes in forecast.told if forecast.step(minutes) < task.output_shape[0]]
    return [f"{name}_{minutes}{count}" for minutes in told for name in ERRORS for count in ("", "_count")]


def forecast_errors(forecast: Forecast, outputs: Tensor, targets: Tensor, real: Tensor) -> dict[str, Tensor]:
    """mae_15, mape_15, rmse_15, … of each client, (k,), and the number of values behind each as mae_15_count, ….

    outputs and targets (k, n, steps) in z-scores, real (k, n) says which samples exist. Over the values y that are not
    missing: mean |ŷ − y|, mean |ŷ − y| / |y| (0.1 is 10 %) and √mean (ŷ − y)². A client without any has zeros, count 0.
    """
    y = targets.double() * forecast.std + forecast.mean
    error = (outputs.reshape(targets.shape).double() - targets).abs() * forecast.std
    there = real[..., None].expand(y.shape)
    if forecast.missing is not None:
        there = there & ((y - forecast.missing).abs() > 1e-3)
    answer: dict[str, Tensor] = {}
    for minutes in forecast.told:
        step = forecast.step(minutes)
        if step >= y.shape[2]:
            continue
        e, t, kept = error[..., step], y[..., step], there[..., step]
        count = kept.sum(dim=1)

        def mean(values: Tensor, kept: Tensor = kept, count: Tensor = count) -> Tensor:
            return torch.where(kept, values, 0.0).sum(dim=1) / count.clamp(min=1)

        values = mean(e), mean(e / torch.where(kept, t, 1.0).abs()), mean(e**2).sqrt()
        for name, value in zip(ERRORS, values):
            answer[f"{name}_{minutes}"], answer[f"{name}_{minutes}_count"] = value, count
    return answer


def persistence(federation: Federation) -> pd.DataFrame:
    """The errors on the test samples of saying that nothing will change: the last value seen, at every step ahead.

    One line per client with the columns of `forecast_errors`; NaN where a client has no value to be tested on. A missing
    last value is replaced by the one before, and so on.
    """
    import pandas as pd

    forecast = federation.task.forecast
    if forecast is None:
        raise FedkinError("persistence needs a forecasting task, such as that of metr-la")
    lines = []
    for x, y in federation.test:
        past = x.reshape(len(x), len(x[0]) if len(x) else 0, -1)[..., 0]
        seen = np.ones(past.shape, dtype=bool)
        if forecast.missing is not None:
            seen = np.abs(past * forecast.std + forecast.mean - forecast.missing) > 1e-3
        last = past.shape[1] - 1 - np.argmax(seen[:, ::-1], axis=1) if len(x) else np.zeros(0, dtype=int)
        value = torch.from_numpy(past[np.arange(len(x)), last])[None, :, None]
        targets = torch.from_numpy(y)[None]
        found = forecast_errors(forecast, value.expand(targets.shape), targets, torch.ones(targets.shape[:2]).bool())
        lines.append(
            {
                name: float(value) if found[f"{name}_count"] else float("nan")
                for name, value in found.items()
                if not name.endswith("_count")
            }
        )
    return pd.DataFrame(lines, index=pd.Index(federation.names, name="client"))
