"""How a client's probabilities do, as few points of two curves: the ROC, and what was forecast against what happened."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkin.task.metrics import one_against_rest
from fedkin.task.task import Task

FALSE_POSITIVES = np.linspace(0, 1, 21)
"""The shares of false positives at which a ROC is told."""
BINS = 10
"""Forecasts are told in so many bins of equal width."""
NO_VALUE = -1.0
"""A ROC's points where the test samples have one class."""
MOST_CLIENTS = 2_000
"""Of more clients than this no curves are asked."""
ASK_CURVES = "curves"
"""Beside parts of the data, what an evaluation may be asked for: the arrays "roc" and "calibration" of the test samples."""


def tells_curves(task: Task) -> bool:
    """Whether there are probabilities to draw curves of."""
    return not task.numeric


def no_curves(clients: int) -> dict[str, Tensor]:
    """The arrays "roc" (k, 22) and "calibration" (k, 3, 10) of clients that have nothing to tell."""
    return {
        "roc": torch.full((clients, len(FALSE_POSITIVES) + 1), NO_VALUE, dtype=torch.float64),
        "calibration": torch.zeros((clients, 3, BINS), dtype=torch.float64),
    }


def points_of(task: Task, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The arrays "roc" (22,) and "calibration" (3, 10) of one client's outputs (n, C)."""
    chances = task.linked(outputs.double()).cpu().numpy()
    true = targets.cpu().numpy() if task.one_label else targets.reshape(outputs.shape).cpu().numpy()
    roc, calibration = roc_points(chances, true), calibration_points(chances, true)
    return {"roc": torch.from_numpy(roc), "calibration": torch.from_numpy(calibration)}


def roc_points(chances: np.ndarray, true: np.ndarray) -> np.ndarray:
    """The share found at each of FALSE_POSITIVES, and the area under the exact curve, (22,).

    Of class 1 where there are two; else the mean of one against the rest over classes that can be told apart, as `auroc`.
    """
    pairs = one_against_rest(chances, true)
    if not pairs:
        return np.full(len(FALSE_POSITIVES) + 1, NO_VALUE)
    return np.asarray(np.clip(np.mean([_roc(chance, truth) for chance, truth in pairs], axis=0), 0, 1))


def _roc(chance: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """One class's curve and area: samples of equal chance are one step; where it rises straight up, its upper end counts."""
    order = np.argsort(-chance, kind="stable")
    steps = np.append(np.flatnonzero(np.diff(chance[order])), len(order) - 1)
    found = np.cumsum(truth[order])[steps]
    wrong = np.append(0, (steps + 1 - found) / (~truth).sum())
    right = np.append(0, found / truth.sum())
    upper = np.append(np.diff(wrong) > 0, True)
    return np.append(np.interp(FALSE_POSITIVES, wrong[upper], right[upper]), np.trapezoid(right, wrong))


def calibration_points(chances: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Per bin of forecasts: the share of them in it, their mean, and how many came true, (3, BINS); zeros where it is empty.

    A forecast is the probability of class 1 where there are two, of the predicted class where there are more, of each
    column of a multi-label target.
    """
    if true.ndim > 1:
        forecast, happened = chances.reshape(-1), true.reshape(-1) == 1
    elif chances.shape[1] == 2:
        forecast, happened = chances[:, 1], true == 1
    else:
        forecast, happened = chances.max(axis=1), chances.argmax(axis=1) == true
    place = np.clip((forecast * BINS).astype(int), 0, BINS - 1)
    count = np.bincount(place, minlength=BINS)
    said, came = np.bincount(place, forecast, BINS), np.bincount(place, happened, BINS)
    shares = np.stack([count / len(forecast), said / np.maximum(count, 1), came / np.maximum(count, 1)])
    return np.asarray(np.clip(shares, 0, 1))
