"""Noise that nobody else can draw again, and the account of what was answered with it."""

from __future__ import annotations

import math
import secrets

import numpy as np
from scipy.special import ndtri
from torch import Tensor

from fedkin.errors import FedkinError


def secret_normal(shape: tuple[int, ...]) -> np.ndarray:
    """N(0, 1) numbers from the operating system's entropy, not from a run's seed, which the server knows.

    Noise that can be redrawn can be subtracted. Uniform numbers of 53 bits go through the inverse of Φ.
    """
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(11)
    return ndtri((words.astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


def spend(spent: Tensor, epsilon: float, delta: float, limit: tuple[float, float] | None, client: str) -> None:
    """Add one (ε, δ) answer to what a client has `spent` (2,), in place; refuse it if the sum would pass the limit.

    Basic composition: answers with (ε_i, δ_i) are together (Σε_i, Σδ_i)-differentially private.
    """
    after = spent[0].item() + epsilon, spent[1].item() + delta
    if limit is not None and (after[0] > limit[0] or after[1] > limit[1]):
        raise FedkinError(
            f"client {client!r} has spent its privacy budget: with this answer ε = {after[0]:g}, δ = {after[1]:g}, and it "
            f"allows ε = {limit[0]:g}, δ = {limit[1]:g}"
        )
    spent[0], spent[1] = after
