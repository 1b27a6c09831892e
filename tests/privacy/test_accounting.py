"""What noisy steps cost: dp-accounting against Opacus and against the published sum."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb

from fedkin.errors import FedkinError
from fedkin.privacy.accounting import ORDERS, cost_of_steps, epsilon_of, noise_for, steps_within
from fedkin.privacy.gaussian import gaussian_sigma

CASES = [
    (0.01, 1.0, 1000, 1e-5),
    (0.1, 1.5, 300, 1e-5),
    (0.3, 4.0, 400, 1e-3),
    (0.05, 0.8, 100, 1e-4),
    (1.0, 5.0, 20, 1e-3),
]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), CASES)
def test_agrees_with_opacus_to_one_per_cent(rate: float, noise: float, steps: int, delta: float) -> None:
    from opacus.accountants import RDPAccountant

    other = RDPAccountant()
    other.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = other.get_epsilon(delta)
    assert epsilon_of(cost_of_steps(rate, noise, steps), delta) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3, 0.1])
def test_costs_become_epsilon_as_dp_accounting_has_it(delta: float) -> None:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    steps = [cost_of_steps(rate, noise, many) for rate in (0.01, 0.4, 1.0) for noise in (0.6, 5.0) for many in (1, 999)]
    for cost in [*steps, np.full(len(ORDERS), 1e-12), np.zeros(len(ORDERS))]:
        assert epsilon_of(cost, delta) == pytest.approx(compute_epsilon(ORDERS, cost, delta)[0], rel=1e-12)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 2.0), (1.0, 3.0)])
def test_a_step_costs_what_the_published_sum_says(rate: float, noise: float) -> None:
    cost = dict(zip(ORDERS, cost_of_steps(rate, noise)))
    for order in (2, 5, 16):
        terms = [
            comb(order, j) * (1 - rate) ** (order - j) * rate**j * math.exp(j * (j - 1) / (2 * noise**2))
            for j in range(order + 1)
        ]
        assert cost[order] == pytest.approx(math.log(sum(terms)) / (order - 1), rel=1e-6)


def test_without_sampling_it_is_close_to_the_exact_gaussian_mechanism() -> None:
    sigma = gaussian_sigma(1.0, 1e-5)
    assert 1.0 <= epsilon_of(cost_of_steps(1.0, sigma), 1e-5) <= 1.15  # Rényi orders lose a little


@settings(max_examples=25, deadline=None)
@given(
    epsilon=st.floats(0.1, 30),
    delta=st.sampled_from([1e-3, 1e-5]),
    rate=st.sampled_from([0.02, 0.2, 0.7, 1.0]),
    steps=st.integers(1, 2000),
)
def test_the_noise_that_is_chosen_spends_the_budget_and_no_more(
    epsilon: float, delta: float, rate: float, steps: int
) -> None:
    noise = noise_for(epsilon, delta, rate, steps)
    spent = epsilon_of(cost_of_steps(rate, noise, steps), delta)
    assert spent <= epsilon * (1 + 1e-9)
    assert spent >= 0.97 * epsilon or noise <= 0.021
    nothing = np.zeros(len(ORDERS))
    assert steps_within(nothing, cost_of_steps(rate, noise), epsilon, delta) >= steps


def test_a_budget_out_of_reach_is_refused() -> None:
    with pytest.raises(FedkinError, match="out of reach"):
        noise_for(1e-6, 1e-9, 1.0, 10**6)
