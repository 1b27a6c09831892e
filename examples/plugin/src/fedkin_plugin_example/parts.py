"""A denoiser and a data set that register when this module is imported."""

from __future__ import annotations

import numpy as np

from fedkin import Federation
from fedkin.couplings.denoisers import denoiser
from fedkin.data.federate import Recipe, pooled
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays


@denoiser("lorentz")
def lorentz(lambdas: np.ndarray, strength: float) -> np.ndarray:
    """h(λ) = 1 / (1 + (sλ)²)."""
    return 1 / (1 + (strength * lambdas) ** 2)


@dataset(
    name="two-moons",
    description="two interleaved half circles",
    size="400 points, 2 features, 2 classes",
    licence="generated",
    citation="scikit-learn, make_moons",
)
def two_moons(arrays: Arrays, recipe: Recipe, noise: float = 0.2) -> Federation:
    from sklearn.datasets import make_moons

    x, y = make_moons(400, noise=noise, random_state=recipe.seed)
    return pooled(recipe, x, y, range(2))
