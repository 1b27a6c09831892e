"""What the image sets share: shapes, scalings, which files are pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedkin.data.federate import Fit, Recipe, Scaling, pooled
from fedkin.data.source import Arrays
from fedkin.errors import unknown
from fedkin.federation import Federation


def unit(train: np.ndarray) -> Scaling:
    """Pixels 0…255 to [0, 1]."""
    return lambda raw: np.multiply(raw, np.float32(1 / 255), dtype=np.float32)


def symmetric(train: np.ndarray) -> Scaling:
    """Pixels 0…255 to [−1, 1]."""

    def scale(raw: np.ndarray) -> np.ndarray:
        x = np.multiply(raw, np.float32(2 / 255), dtype=np.float32)
        x -= np.float32(1)
        return x

    return scale


def _moments(train: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of pixels in [0, 1], in blocks so that no float64 copy of the images is made."""
    count, total, square = 0, np.zeros(1), np.zeros(1)
    for start in range(0, len(train), 4096):
        block = train[start : start + 4096].astype(np.float64) / 255
        count += block.size // block.mean(axis=axes, keepdims=True).size
        total = total + block.sum(axis=axes, keepdims=True)
        square = square + (block**2).sum(axis=axes, keepdims=True)
    mean = total / count
    return mean.astype(np.float32), np.sqrt(np.maximum(square / count - mean**2, 0)).astype(np.float32)


def _standard(axes: tuple[int, ...], extra: float) -> Fit:
    def fit(train: np.ndarray) -> Scaling:
        mean, deviation = _moments(train, axes)

        def scale(raw: np.ndarray) -> np.ndarray:
            x = np.multiply(raw, np.float32(1 / 255), dtype=np.float32)
            x -= mean
            x /= deviation + np.float32(extra)
            return x

        return scale

    return fit


SCALINGS: dict[str, Fit] = {
    "unit": unit,
    "symmetric": symmetric,
    "pixel": _standard((0,), 0.001),
    "mean_std": _standard((0, 2, 3), 0.0),
}


def images(
    arrays: Arrays,
    recipe: Recipe,
    classes: Sequence[Any],
    standardise: str,
    files: str,
    shape: str,
    samples: int | None,
) -> Federation:
    """A federation of images from arrays `train_x`, `train_y`, `test_x`, `test_y` (uint8, n × channels × h × w).

    `standardise`: "unit" [0, 1]; "symmetric" [−1, 1]; "pixel" (x − μ)/(σ + 0.001) for each pixel, as in FedU;
    "mean_std" (x − μ)/σ for each channel; both fitted on the training rows of all clients.
    `files`: which files are pooled before clients are formed, "all" or "train". `shape`: "image" or "flat".
    """
    if standardise not in SCALINGS:
        raise unknown("standardise", standardise, SCALINGS)
    if files not in ("all", "train"):
        raise unknown("files", files, ["all", "train"])
    if shape not in ("image", "flat"):
        raise unknown("shape", shape, ["image", "flat"])
    x, y = arrays["train_x"], arrays["train_y"]
    if files == "all":
        x, y = np.concatenate([x, arrays["test_x"]]), np.concatenate([y, arrays["test_y"]])
    inner = SCALINGS[standardise]

    def fit(train: np.ndarray) -> Scaling:
        scale = inner(train)
        return scale if shape == "image" else lambda raw: scale(raw).reshape(len(raw), math.prod(raw.shape[1:]))

    return pooled(recipe, x, np.asarray(y), classes, fit=fit, samples=samples)
