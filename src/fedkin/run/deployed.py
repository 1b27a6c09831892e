"""What clients would deploy: the models they received or those after local training, and how these do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedkin.algorithm import Setting, State
from fedkin.clients import Clients, Replies
from fedkin.compute.placement import on_device


def per_client_metrics(
    ids: np.ndarray, arrays: Mapping[str, Tensor], clients: int, parts: Sequence[str]
) -> dict[str, list[float]]:
    """Replies of an evaluation as one value per client; NaN for clients that failed or have no samples."""
    table: dict[str, list[float]] = {}
    for part in parts:
        for key, values in arrays.items():
            if key.startswith(f"{part}_") and not key.endswith("_count"):
                count = arrays.get(f"{key}_count", arrays[f"{part}_count"]).cpu().numpy()
                column = np.full(clients, np.nan)
                column[ids] = np.where(count > 0, values.double().cpu().numpy(), np.nan)
                table[key] = column.tolist()
    return table


PSEUDO_SAMPLES = 10.0
"""How many samples the federation's mean gain counts for in a client's own."""


def choose_trained(deploys: str, metrics: Mapping[str, Mapping[str, list[float]]], count: np.ndarray) -> np.ndarray:
    """Which clients deploy the model after local training, (K,) bool. Validation loss may decide, test data never.

    A client's own gain g_i on its n_i = `count` validation samples is drawn to the federation's mean gain ḡ as if that
    were ten more samples, (n_i g_i + 10 ḡ)/(n_i + 10): a handful of samples says little, all of them together much.
    """
    clients = len(next(iter(metrics["pre"].values())))
    if deploys != "validated":
        return np.full(clients, deploys == "trained")
    if "validation_loss" not in metrics["pre"]:
        return np.full(clients, True)
    before, after = (np.array(metrics[when]["validation_loss"], dtype=float) for when in ("pre", "post"))
    own = before - after
    told = np.isfinite(own)
    mean = float(own[told].mean()) if told.any() else 0.0
    weight = np.where(told, count, 0)
    shrunken = (weight * np.where(told, own, 0) + PSEUDO_SAMPLES * mean) / (weight + PSEUDO_SAMPLES)
    return ~(shrunken < 0)


def moved(state: State, device: str) -> State:
    """The state with its arrays on a device."""
    return replace(state, arrays=on_device(state.arrays, device))


def whole_models(replies: Replies, state: State, setting: Setting) -> tuple[Tensor, Tensor]:
    """The clients' whole models (K, B) and counters (K, C); a client that failed keeps what the server has of it."""
    clients = len(setting)
    counters = setting.spec.initial_counters().expand(clients, -1).clone()
    counters[replies.ids] = replies["counters"]
    models = replies["model"].to(setting.spec.dtype)
    if len(models) < clients:
        answered = models
        models = torch.zeros((clients, setting.model.layout.width), dtype=setting.spec.dtype)
        if "rows" in state.arrays:
            models.copy_(setting.completed(state.rows))
        models[replies.ids] = answered
    return models, counters


def picked(trained: np.ndarray, after: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Models (K, B) and counters (K, C) after local training where `trained` (K,), else as received."""
    if trained.all() or not trained.any():
        return after if trained.all() else before
    choose = torch.from_numpy(trained)[:, None]
    return torch.where(choose, after[0], before[0]), torch.where(choose, after[1], before[1])


def on_global_test(clients: Clients, models: Tensor) -> list[float]:
    """The metric of every client's model on the union of all test sets, one value per client."""
    replies = clients.ask("cross_evaluate", np.arange(len(models)), shared={"models": models}, bill=False)
    weight = replies["metric_count"].double()
    return ((weight * replies["metric"]).sum(dim=0) / weight.sum(dim=0).clamp(min=1)).tolist()
