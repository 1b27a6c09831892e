"""The Gaussian mechanism: how much noise gives (ε, δ)-differential privacy."""

from __future__ import annotations

import math

import scipy  # its parts are imported when they are first used
from scipy.special import log_ndtr

from fedkin.errors import FedkinError


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> float:
    """The exact δ(ε) of adding N(0, σ²) to a query of Euclidean sensitivity Δ (Balle and Wang 2018, theorem 8):

    δ = Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ).
    """
    a, b = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    # Both terms may be tiny and nearly equal: work with logarithms, e^p − e^q = e^p (1 − e^{q−p}).
    p, q = float(log_ndtr(a - b)), epsilon + float(log_ndtr(-a - b))
    return 0.0 if q >= p else math.exp(p) * -math.expm1(q - p)


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest σ for which adding N(0, σ²) is (ε, δ)-differentially private: the analytic Gaussian mechanism.

    Unlike σ = Δ√(2 ln(1.25/δ))/ε it holds for every ε > 0 and is never larger.

    >>> round(gaussian_sigma(1.0, 1e-5), 4)
    3.7306
    """
    for name, value, upper in (
        ("epsilon", epsilon, math.inf),
        ("delta", delta, 1.0),
        ("sensitivity", sensitivity, math.inf),
    ):
        if not 0 < value < upper:
            raise FedkinError(f"{name} must lie between 0 and {upper:g}, not {value!r}")
    high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        high *= 2
    low = high / 2
    while gaussian_delta(epsilon, low) <= delta:
        low /= 2
    root = scipy.optimize.brentq(
        lambda s: math.log(max(gaussian_delta(epsilon, s), 1e-300) / delta), low, high, xtol=1e-14, rtol=1e-12
    )
    return sensitivity * root * (1 + 1e-9)  # on the private side of the root
