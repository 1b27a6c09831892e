"""What a client tells about its data so that a graph can be built: four moments per feature, once."""

from __future__ import annotations

import numpy as np

from fedkin.errors import FedkinError
from fedkin.privacy.gaussian import gaussian_sigma
from fedkin.privacy.noise import secret_normal

ZERO_VARIANCE = 1e-8
"""Below this variance a feature is constant: skewness and kurtosis are set to 0."""


def moments(x: np.ndarray) -> np.ndarray:
    """Mean, variance, skewness and kurtosis of every feature of one client's samples, shape (4, M).

    `x` is (n, *input shape); an input is flattened to M features. All are means over the n samples (divided by n):
    s₂ = mean((x−s₁)²), s₃ = mean((x−s₁)³) / s₂^{3/2}, s₄ = mean((x−s₁)⁴) / s₂² (a normal distribution has 3). Two
    passes in float64, so that large means do not cost digits. Where s₂ < 1e-8, s₃ = s₄ = 0.

    >>> moments(np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])).round(3)
    array([[2.   , 5.   ],
           [2.667, 0.   ],
           [0.   , 0.   ],
           [1.5  , 0.   ]])
    """
    flat = _flat(x)
    mean = flat.mean(axis=0)
    centred = flat - mean
    square = centred * centred
    variance = square.mean(axis=0)
    return _standardised(mean, variance, (square * centred).mean(axis=0), (square * square).mean(axis=0), ZERO_VARIANCE)


def noisy_moments(
    x: np.ndarray, low: float, high: float, epsilon: float, delta: float, generator: np.random.Generator | None = None
) -> np.ndarray:
    """The four moments with (ε, δ)-differential privacy for one sample of this client, shape (4, M).

    Skewness and kurtosis themselves have no bounded sensitivity (the variance they are divided by may be near 0), so
    the noise goes on what they are made of. Features are clipped to [low, high] and mapped to u ∈ [0, 1]; the client
    computes the means of u, u², u³, u⁴. Replacing one of n samples moves each of these 4M means by at most 1/n,
    together by Δ = 2√M / n in Euclidean norm. Gaussian noise of the analytic mechanism for (ε, δ, Δ) is added once; the
    moments are computed from the noisy means, which costs no more privacy. Where the noisy variance is within three standard
    deviations of the noise, skewness and kurtosis are set to 0. The number of samples n is taken as public.
    The noise comes from the client's own secret entropy; a `generator` makes it repeatable, hence removable: for tests.
    """
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise FedkinError(f"private statistics need a finite range low < high, not [{low}, {high}]")
    flat = (_flat(x).clip(low, high) - low) / (high - low)
    n, features = flat.shape
    sigma = gaussian_sigma(epsilon, delta, sensitivity=2 * np.sqrt(features) / n)
    noise = secret_normal((4, features)) if generator is None else generator.standard_normal((4, features))
    power = np.stack([(flat**p).mean(axis=0) for p in (1, 2, 3, 4)]) + sigma * noise
    m1, m2, m3, m4 = power
    variance = (m2 - m1**2).clip(0)
    third, fourth = m3 - 3 * m1 * m2 + 2 * m1**3, m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    out = _standardised(m1, variance, third, fourth, max(ZERO_VARIANCE, 3 * sigma))
    out[0], out[1] = low + (high - low) * out[0], (high - low) ** 2 * out[1]
    return out


def _flat(x: np.ndarray) -> np.ndarray:
    if len(x) == 0:
        raise FedkinError("statistics need at least one sample")
    return np.asarray(x, dtype=np.float64).reshape(len(x), -1)


def _standardised(
    mean: np.ndarray, variance: np.ndarray, third: np.ndarray, fourth: np.ndarray, least: float
) -> np.ndarray:
    varies = variance >= least
    safe = np.where(varies, variance, 1.0)
    return np.stack([mean, variance, np.where(varies, third / safe**1.5, 0), np.where(varies, fourth / safe**2, 0)])
