"""How a denoiser's strength changes over rounds t = 1, 2, …"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real

from fedkin.errors import FedkinError

Schedule = Callable[[int], float]


def constant(strength: float) -> Schedule:
    """The same strength in every round."""
    return lambda t: strength


def decreasing(beta: float, nu0: float = 1.0, eta: float = 0.1) -> Schedule:
    """ν_t = max(β, ν⁰(1−η)^{t−1}): strong denoising first, β from some round on (FedPnP, soft).

    For β = 0 the paper sets ν⁰ = 0 too; give `nu0=0` for that.

    >>> schedule = decreasing(beta=0.5, nu0=1.0, eta=0.2)
    >>> [round(schedule(t), 3) for t in (1, 2, 3, 4, 5)]
    [1.0, 0.8, 0.64, 0.512, 0.5]
    """
    if not 0 <= eta <= 1:
        raise FedkinError(f"schedule: eta must be between 0 and 1, not {eta!r}")
    for name, value in (("beta", beta), ("nu0", nu0)):
        if not 0 <= value < float("inf"):
            raise FedkinError(f"schedule: {name} must be finite and not negative, not {value!r}")
    return lambda t: max(beta, nu0 * (1 - eta) ** (t - 1))


def fall_within(rounds: float, beta: float, nu0: float = 1.0) -> float:
    """The η with which ν falls from ν⁰ to β within so many rounds; the paper's 0.1 where that has no answer.

    >>> round(fall_within(10, beta=0.001), 3)
    0.499
    """
    if rounds < 1 or not 0 < beta < nu0:
        return 0.1
    return float(1 - (beta / nu0) ** (1 / rounds))


def increasing_rank(tau: int, every: float = 1) -> Schedule:
    """ν_t = min(τ, 1 + ⌊(t−1)/Δ⌋): one mode more every Δ rounds, up to τ (FedPnP, hard); several a round for Δ < 1.

    >>> [increasing_rank(tau=3, every=2)(t) for t in (1, 2, 3, 4, 5, 9)]
    [1, 1, 2, 2, 3, 3]
    >>> [increasing_rank(tau=7, every=1 / 3)(t) for t in (1, 2, 3, 4)]
    [1, 4, 7, 7]
    """
    if every <= 0 or tau < 1:
        raise FedkinError(f"schedule: tau must be at least 1 and every greater than 0, not {tau!r} and {every!r}")
    return lambda t: min(tau, 1 + int((t - 1) / every + 1e-9))


def grow_within(rounds: float, tau: int) -> float:
    """The Δ ≤ 1 with which ν grows from 1 mode to τ within so many rounds: the paper's 1 where that is enough.

    >>> grow_within(20, tau=16), grow_within(15, tau=61), grow_within(0, tau=61)
    (1.0, 0.25, 1.0)
    """
    return 1.0 if rounds < 1 or tau == 1 else min(1.0, rounds / (tau - 1))


def checked_schedule(schedule: Schedule) -> Schedule:
    """A user's own schedule: what it returns is refused if it is not a finite number ≥ 0."""

    def strength(t: int) -> float:
        value = schedule(t)
        if not isinstance(value, Real) or not 0 <= value < float("inf"):
            raise FedkinError(f"schedule: the strength of round {t} must be finite and not negative, not {value!r}")
        return value

    return strength
