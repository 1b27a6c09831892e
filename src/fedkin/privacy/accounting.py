"""How much privacy noisy steps cost: Rényi differential privacy of the subsampled Gaussian mechanism, by dp-accounting.

A step takes every sample with probability q, clips, sums and adds N(0, (σC)²). Its Rényi divergence at order α adds up over
steps; (ε, δ) follows by the conversion of Balle et al. 2020. Neighbouring data differ by one added or removed record.

References: Abadi et al., Deep Learning with Differential Privacy, 2016; Mironov, Talwar and Zhang, Rényi Differential Privacy
of the Sampled Gaussian Mechanism, 2019.
"""

from __future__ import annotations

import logging
import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
import scipy  # its parts are imported when they are first used
from scipy.special import gammaln, logsumexp

from fedkin.errors import FedkinError

ORDERS = np.array([1.5, 2, 2.5, 3, 3.5, *range(4, 33), 36, 40, 48, 64, 96, 128, 256, 512])
"""Orders α at which costs are kept; ε is the best over all of them."""
SAFE = 1 + 1e-5
"""By how much a noise that was found by iteration is made larger."""
WHOLE = ORDERS[np.floor(ORDERS) == ORDERS]
"""Those at which the divergence is a finite sum."""


@cache
def accountants() -> Any:
    """The packages dp_accounting and dp_accounting.rdp; where the extra is not installed, the one line that says so."""
    try:
        import dp_accounting
        from cryptography.hazmat.primitives import ciphers as _  # noqa: F401
        from dp_accounting import rdp
    except ImportError as problem:
        raise FedkinError(
            "private training is counted by dp-accounting; install it with: pip install 'fedkin[privacy]'"
        ) from problem
    # It warns of every fractional order that does not converge and leaves it out, which is right, and our business.
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting, rdp


@lru_cache(maxsize=100_000)
def _cost(rate: float, noise: float) -> np.ndarray:
    events, rdp = accountants()
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(events.PoissonSampledDpEvent(rate, events.GaussianDpEvent(noise)))
    return np.asarray(accountant._rdp, dtype=float)  # it has no public name, and composing anew costs milliseconds


def cost_of_steps(rate: float, noise: float, steps: int = 1) -> np.ndarray:
    """Rényi divergence of so many steps with sampling rate q and noise multiplier σ, at all `ORDERS`."""
    return steps * _cost(float(rate), float(noise))


def epsilon_of(cost: np.ndarray, delta: float) -> float:
    """The ε at this δ of mechanisms whose Rényi divergences sum to `cost`; 0 where nothing was spent.

    As dp-accounting converts it (a test), for all orders at once: every client asks every round.
    """
    if not np.any(cost > 0):
        return 0.0
    total_variation = (
        delta**2 + np.expm1(-cost) > 0
    )  # at most √(1 − e^−cost), so that below δ nothing else need be told
    return max(0.0, float(np.where(total_variation, 0.0, cost + _conversion(ORDERS, delta)).min()))


def steps_within(spent: np.ndarray, step: np.ndarray, epsilon: float, delta: float) -> int:
    """How many steps of cost `step` still fit into (ε, δ) after what was `spent`: the best order decides."""
    room = epsilon - _conversion(ORDERS, delta) - spent
    known = np.isfinite(step) & (step > 0)
    return max(0, int(np.floor(np.max(room[known] / step[known], initial=0.0))))


@lru_cache(maxsize=100_000)
def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The noise multiplier σ with which so many steps at sampling rate q cost at most (ε, δ).

    Searched over whole orders, where the divergence is a short sum (a millisecond instead of a hundred), so that the
    accountant, which knows more orders, finds at most ε.
    """

    def excess(log_noise: float) -> float:
        cost = steps * _whole_orders(rate, math.exp(log_noise))
        return math.log(max(_converted(cost, delta), 1e-12) / epsilon)

    low, high = math.log(0.02), math.log(1e5)
    if excess(high) > 0:
        raise FedkinError(f"epsilon = {epsilon:g} is out of reach in {steps:,} steps; take fewer, or a larger epsilon")
    if excess(low) <= 0:
        return math.exp(low)
    chosen = math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-6)) * SAFE
    if epsilon_of(cost_of_steps(rate, chosen, steps), delta) < 0.99 * epsilon:  # orders between 1 and 2 matter

        def exact(log_noise: float) -> float:
            return math.log(epsilon_of(cost_of_steps(rate, math.exp(log_noise), steps), delta) / epsilon)

        most = math.log(chosen)
        chosen = math.exp(scipy.optimize.brentq(exact, most - 1, most, xtol=1e-4) + 2e-4) * SAFE
    return chosen


def _whole_orders(rate: float, noise: float) -> np.ndarray:
    """log Σ_j C(α, j) (1 − q)^{α−j} q^j exp(j(j − 1) / 2σ²) / (α − 1) at the whole orders α (Mironov et al. 2019, eq. 6)."""
    if rate == 1:
        return WHOLE / (2 * noise**2)
    j = np.arange(WHOLE.max() + 1)
    binomial, powers = _binomials()
    terms = binomial + powers * math.log1p(-rate) + j * math.log(rate) + j * (j - 1) / (2 * noise**2)
    return np.maximum(np.asarray(logsumexp(terms, axis=1)), 0) / (WHOLE - 1)


@cache
def _binomials() -> tuple[np.ndarray, np.ndarray]:
    """log C(α, j), −∞ beyond j = α, and α − j, both (orders, largest order + 1)."""
    a, j = WHOLE[:, None], np.arange(WHOLE.max() + 1)[None, :]
    left = np.maximum(a - j, 0)
    return np.where(j <= a, gammaln(a + 1) - gammaln(j + 1) - gammaln(left + 1), -np.inf), left


def _converted(cost: np.ndarray, delta: float) -> float:
    """The ε of costs at the whole orders."""
    return max(0.0, float((cost + _conversion(WHOLE, delta)).min()))


def _conversion(orders: np.ndarray, delta: float) -> np.ndarray:
    """log((α − 1)/α) − (log δ + log α)/(α − 1): what a cost at order α is less than its ε (Balle et al. 2020, theorem 21)."""
    return np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
