from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.errors import FedkinError
from fedkin.graphs.statistics import moments, noisy_moments


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 60), st.integers(0, 1000), st.sampled_from([0.0, 100.0]))
def test_moments_against_scipy(n: int, seed: int, offset: float) -> None:
    x = np.random.default_rng(seed).exponential(size=(n, 2, 3)) + offset
    flat = x.reshape(n, 6)
    s = moments(x)
    np.testing.assert_allclose(s[0], flat.mean(axis=0))
    np.testing.assert_allclose(s[1], flat.var(axis=0))
    np.testing.assert_allclose(s[2], scipy.stats.skew(flat), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(s[3], scipy.stats.kurtosis(flat, fisher=False), rtol=1e-7)


def test_constant_features_and_single_samples_have_no_shape() -> None:
    s = moments(np.array([[1.0, 5.0], [3.0, 5.0 + 1e-6]], dtype=np.float32))
    assert s[2:, 1].tolist() == [0, 0]
    assert s[3, 0] == pytest.approx(1)
    assert np.isfinite(moments(np.ones((1, 4)))).all()
    with pytest.raises(FedkinError, match="at least one sample"):
        moments(np.zeros((0, 4)))


def test_noisy_moments_approach_the_true_ones_as_epsilon_grows() -> None:
    x = np.random.default_rng(0).beta(2, 5, size=(5_000, 3)) * 10 - 4
    exact = moments(x)
    noisy = noisy_moments(x, -4, 6, epsilon=1e6, delta=1e-5, generator=np.random.default_rng(1))
    np.testing.assert_allclose(noisy, exact, rtol=1e-2, atol=1e-2)


def test_noise_on_the_mean_has_the_calibrated_size() -> None:
    from fedkin.privacy.gaussian import gaussian_sigma

    x = np.full((50, 2_000), 0.5)
    s = noisy_moments(x, 0, 2, epsilon=2.0, delta=1e-6, generator=np.random.default_rng(0))
    sigma = gaussian_sigma(2.0, 1e-6, sensitivity=2 * np.sqrt(2_000) / 50)
    assert (s[0] - 0.5).std() / 2 == pytest.approx(sigma, rel=0.05)  # the range [0, 2] was mapped to [0, 1]
    assert np.isfinite(s).all()


def test_sensitivity_bound_holds_for_replaced_samples() -> None:
    rng = np.random.default_rng(0)
    n, features = 7, 5
    worst = 0.0
    for _ in range(200):
        x = rng.integers(0, 2, size=(n, features)).astype(float)
        y = x.copy()
        y[0] = rng.integers(0, 2, size=features)
        power = [np.stack([(v**p).mean(axis=0) for p in (1, 2, 3, 4)]) for v in (x, y)]
        worst = max(worst, float(np.linalg.norm(power[0] - power[1])))
    assert worst <= 2 * np.sqrt(features) / n + 1e-12
    assert worst > 0.9 * 2 * np.sqrt(features) / n  # and it is tight


def test_bad_ranges_are_refused() -> None:
    for low, high in ((1.0, 1.0), (2.0, 1.0), (0.0, float("inf"))):
        with pytest.raises(FedkinError, match="low < high"):
            noisy_moments(np.ones((3, 2)), low, high, 1.0, 1e-5, np.random.default_rng(0))
