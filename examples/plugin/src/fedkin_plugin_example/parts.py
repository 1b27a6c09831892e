"""A denoiser, a data set, a loss and a metric that register when this module is imported."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedkin import Federation, loss, metric
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


@loss("brier-score", kinds=("classification",))
def brier_score(outputs: Tensor, targets: Tensor) -> Tensor:
    """Σ_c (p_c − 1[y = c])²."""
    chances = outputs.softmax(dim=1)
    right = chances.gather(1, targets[:, None])[:, 0]
    return chances.square().sum(dim=1) - 2 * right + 1


@metric("recall", needs="labels", larger_is_better=True, unit="%", kinds=("classification",))
def recall(predicted: np.ndarray, true: np.ndarray) -> float:
    """The share of class 1 that is found; no value where there is none."""
    return float((predicted[true == 1] == 1).mean()) if (true == 1).any() else float("nan")
