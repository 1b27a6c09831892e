"""Blends: a client's model as a weighted mean of what several clients' estimators say; these share no weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedkin.errors import FedkinError, unknown
from fedkin.models.adapters.scikit import Classifier

BLENDS, BLENDED_SIZES = "blend_weights", "blend_sizes"


def cautious(chances: np.ndarray, samples: int) -> np.ndarray:
    """Probabilities (n, C) of an estimator that was fitted to so many samples, by Laplace's rule: (samples·p + 1)/(samples + C)."""
    return (samples * chances + 1) / (samples + chances.shape[1])


@dataclass(frozen=True)
class Blend:
    """Σ_j w_j f_j(x): for classes of cautious probabilities, else of numbers. It predicts as a fitted estimator does."""

    fitted: tuple[Any, ...]
    weights: np.ndarray
    sizes: np.ndarray
    """How many samples each was fitted to."""
    classes: int
    """0: numbers."""

    @property
    def classes_(self) -> np.ndarray:
        return np.arange(self.classes)

    def _together(self, x: np.ndarray) -> np.ndarray:
        parts = [
            weight * said(fitted, x, int(n), self.classes)
            for fitted, weight, n in zip(self.fitted, self.weights, self.sizes)
        ]
        return np.asarray(sum(parts))

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """The probability of every class, (n, C)."""
        if not self.classes:
            raise FedkinError("a blend of regressors has no probabilities; use predict")
        return self._together(x)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Codes of classes (n,), or numbers, (n,) or (n, C)."""
        together = self._together(x)
        if self.classes:
            return np.asarray(together.argmax(axis=1))
        return together[:, 0] if together.shape[1] == 1 else together


def said(fitted: Any, x: np.ndarray, samples: int, classes: int) -> np.ndarray:
    """What one estimator says of inputs (n, d): cautious probabilities (n, C), or numbers (n, C)."""
    if classes:
        return cautious(Classifier(fitted, np.arange(classes), classes).chances(x), samples)
    return np.asarray(fitted.predict(x), dtype=np.float64).reshape(len(x), -1)


class Blends(Mapping[str, Blend]):
    """The clients' blends by name, from the estimators of J clients and the weights (K, J) of each client's model.

    The last K of the J are the clients themselves; before them are those of the run that newcomers joined.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        whose: tuple[str, ...],
        fitted: Mapping[str, Any],
        weights: Tensor,
        sizes: np.ndarray,
        classes: int,
    ) -> None:
        self.names, self.whose, self.fitted, self.weights = names, whose, fitted, weights
        self.sizes, self.classes = sizes, classes
        if weights.shape != (len(names), len(whose)) or not bool((weights.sum(dim=1) > 0).all()):
            raise FedkinError("the weights of the blends do not fit the clients; the result is damaged")
        if sizes.shape != (len(whose),):
            raise FedkinError("the sizes of the blends do not fit the clients; the result is damaged")

    def tensors(self) -> dict[str, Tensor]:
        """To be saved."""
        return {BLENDS: self.weights, BLENDED_SIZES: torch.from_numpy(np.asarray(self.sizes))}

    def __getitem__(self, name: str) -> Blend:
        if name not in self.names:
            raise unknown("client", name, self.names)
        own = self.weights[self.names.index(name)].numpy()
        used = np.flatnonzero(own)
        return Blend(tuple(self.fitted[self.whose[j]] for j in used), own[used], self.sizes[used], self.classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
