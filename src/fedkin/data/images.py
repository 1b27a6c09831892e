"""What the image sets share: shapes, scalings, which files are pooled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedkin.data.federate import Recipe, pooled
from fedkin.data.source import Arrays
from fedkin.errors import unknown
from fedkin.federation import Federation, Rescaling
from fedkin.federation.unread import Unread


def unit(train: np.ndarray) -> Rescaling:
    """Pixels 0…255 to [0, 1]."""
    return Rescaling(1 / 255)


def symmetric(train: np.ndarray) -> Rescaling:
    """Pixels 0…255 to [−1, 1]."""
    return Rescaling(2 / 255, np.ones(1, dtype=np.float32))


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


def _standard(axes: tuple[int, ...], extra: float) -> Callable[[np.ndarray], Rescaling]:
    def fit(train: np.ndarray) -> Rescaling:
        mean, deviation = _moments(train, axes)
        return Rescaling(1 / 255, mean[0], (deviation + np.float32(extra))[0])

    return fit


SCALINGS: dict[str, Callable[[np.ndarray], Rescaling]] = {
    "unit": unit,
    "symmetric": symmetric,
    "pixel": _standard((0,), 0.001),
    "mean_std": _standard((0, 2, 3), 0.0),
}


def images(classes: Sequence[Any], says: str) -> Callable[..., Federation]:
    """What builds a federation of images from arrays `train_x`, `train_y`, `test_x`, `test_y` (uint8, n × channels × h × w).

    They stay bytes in memory and are scaled batch by batch. `says` is its documentation.

    `standardise`: "unit" [0, 1]; "symmetric" [−1, 1]; "pixel" (x − μ)/(σ + 0.001) for each pixel, as in FedU;
    "mean_std" (x − μ)/σ for each channel; both fitted on the training rows of all clients.
    `files`: which files are pooled before clients are formed, "all" or "train". `shape`: "image" or "flat".
    """

    def build(
        arrays: Arrays,
        recipe: Recipe,
        standardise: str = "unit",
        files: str = "all",
        shape: str = "image",
        samples: int | None = None,
    ) -> Federation:
        if standardise not in SCALINGS:
            raise unknown("standardise", standardise, SCALINGS)
        if files not in ("all", "train"):
            raise unknown("files", files, ["all", "train"])
        if shape not in ("image", "flat"):
            raise unknown("shape", shape, ["image", "flat"])
        parts = ("train",) if files == "train" else ("train", "test")
        size, scaling = arrays["train_x"].shape[1:], SCALINGS[standardise]
        y = np.concatenate([arrays[f"{part}_y"] for part in parts])
        kept = (-1, *size) if shape == "image" else (-1, math.prod(size))
        x = Unread.join(
            [arrays[f"{part}_x"].reshape(kept) for part in parts]
        )  # gathered once, straight from their files

        def fit(train: np.ndarray) -> Rescaling:
            found = scaling(train.reshape(-1, *size))
            return found if shape == "image" else found.flat(size)

        return pooled(recipe, x, y, classes, fit=fit, samples=samples)

    build.__doc__ = says
    return build
