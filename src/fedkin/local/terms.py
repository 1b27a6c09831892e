"""Gradient terms: small changes of the clients' gradients, applied in turn before the step (as optax composes them).

A term works in place on the gradients (a, P) of the first a clients of a chunk, at their weights (a, P). One that only adds
c·w + s says so (`affine`), and the linear kernel then takes it into its own pass over the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor


class Term(Protocol):
    """A change of the gradient."""

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        """Change the gradients (a, P) at the weights (a, P), in place."""

    def of(self, place: np.ndarray) -> Term:
        """The same for some of the clients."""

    def affine(self, rate: float) -> tuple[float, Tensor | None] | None:
        """(γc, −γs), where the term adds c·w + s (k, P) to the gradient; None where it does something else."""


@dataclass(frozen=True)
class Clip:
    """g ← g·min(1, c / (‖g‖ + 10⁻⁶)), each client's gradient alone, as torch's clip_grad_norm_."""

    norm: float

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        slopes.mul_((self.norm / (slopes.norm(dim=1, keepdim=True) + 1e-6)).clamp_(max=1))

    def of(self, place: np.ndarray) -> Clip:
        return self

    def affine(self, rate: float) -> None:
        return None


@dataclass(frozen=True)
class Decay:
    """g ← g + λw."""

    strength: float

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        slopes.add_(weights, alpha=self.strength)

    def of(self, place: np.ndarray) -> Decay:
        return self

    def affine(self, rate: float) -> tuple[float, Tensor | None]:
        return rate * self.strength, None


@dataclass(frozen=True)
class Pull:
    """g ← g + μ(w − a): the gradient of (μ/2)‖w − a‖², with an anchor a (k, P) for every client."""

    mu: float
    anchor: Tensor

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        slopes.add_(weights, alpha=self.mu).sub_(self.anchor[: len(slopes)], alpha=self.mu)

    def of(self, place: np.ndarray) -> Pull:
        return replace(self, anchor=self.anchor[place])

    def affine(self, rate: float) -> tuple[float, Tensor | None]:
        return rate * self.mu, rate * self.mu * self.anchor


@dataclass(frozen=True)
class Shift:
    """g ← g + s, s (k, P) the same at every step (SCAFFOLD's control variates)."""

    by: Tensor

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        slopes.add_(self.by[: len(slopes)])

    def of(self, place: np.ndarray) -> Shift:
        return Shift(self.by[place])

    def affine(self, rate: float) -> tuple[float, Tensor | None]:
        return 0.0, -rate * self.by


@dataclass(frozen=True)
class Mask:
    """g ← g ∘ m: only the columns with m (P,) = 1 are trained."""

    columns: Tensor

    def add(self, slopes: Tensor, weights: Tensor) -> None:
        slopes.mul_(self.columns)

    def of(self, place: np.ndarray) -> Mask:
        return self

    def affine(self, rate: float) -> None:
        return None


def affine(terms: Sequence[Term], rate: float) -> tuple[float, Tensor | None] | None:
    """All terms as one: w ← shrink·w − γ∇f(w) + push; None where one of them is not affine."""
    lost, push = 0.0, None
    for term in terms:
        part = term.affine(rate)
        if part is None:
            return None
        lost += part[0]
        if part[1] is not None:
            push = part[1] if push is None else push.add_(part[1])
    return 1 - lost, push
