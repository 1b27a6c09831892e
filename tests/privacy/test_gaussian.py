from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fedkin.errors import FedkinError
from fedkin.privacy.gaussian import gaussian_delta, gaussian_sigma


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.1, 3.0), (1.0, 2.0), (3.0, 0.7)])
def test_delta_is_the_hockey_stick_divergence_of_two_normals(epsilon: float, sigma: float) -> None:
    def excess(t: float) -> float:
        return max(norm.pdf(t, 1.0, sigma) - math.exp(epsilon) * norm.pdf(t, 0.0, sigma), 0.0)

    # p(t) = e^ε q(t) at t = 1/2 + εσ²
    start = 0.5 + epsilon * sigma**2
    expected = quad(excess, start, start + 12 * sigma)[0]
    assert gaussian_delta(epsilon, sigma) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 50), st.floats(1e-12, 0.2), st.floats(1e-4, 1e4))
def test_sigma_is_private_and_not_wasteful(epsilon: float, delta: float, sensitivity: float) -> None:
    sigma = gaussian_sigma(epsilon, delta, sensitivity)
    assert gaussian_delta(epsilon, sigma, sensitivity) <= delta
    assert gaussian_delta(epsilon, sigma * 0.999, sensitivity) > delta
    if epsilon <= 1:
        assert sigma <= sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (1, 0), (1, 1), (float("nan"), 1e-5)])
def test_bad_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(FedkinError, match="must lie between"):
        gaussian_sigma(epsilon, delta)
