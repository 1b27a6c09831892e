"""Digits: the handwritten 8×8 digits that scikit-learn carries, so nothing needs to be downloaded."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedkin.data.federate import Recipe, pooled
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays
from fedkin.errors import unknown
from fedkin.federation import Federation


@dataset(
    name="digits",
    description="handwritten digits 8×8, embedded in scikit-learn",
    size="1,797 samples, 64 features, 10 classes",
    licence="CC BY 4.0 (UCI)",
    citation="E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998",
)
def digits(
    arrays: Arrays, recipe: Recipe, shape: Literal["flat", "image"] = "flat", samples: int | None = None
) -> Federation:
    """Intensities 0…16 scaled to [0, 1]; inputs (64,) or, with shape="image", (1, 8, 8)."""
    from sklearn.datasets import load_digits

    if shape not in ("flat", "image"):
        raise unknown("shape of digits", shape, ["flat", "image"])
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8) if shape == "image" else x
    return pooled(recipe, (x / 16).astype(np.float32), y, range(10), samples=samples)
