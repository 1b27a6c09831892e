"""Rate schedules: the factor of the learning rate in round t = 1, 2, …

    constant            1
    step:n,f            f^⌊(t−1)/n⌋
    cosine:n[,low]      low + (1 − low)·½(1 + cos(π·min(t−1, n)/n))
    warm-up:n           min(1, t/n)

Several are multiplied: "warm-up:5+cosine:100". A function of the round is a schedule too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from fedkin.errors import FedkinError, unknown

RateSchedule = Callable[[int], float]


def _step(every: float, factor: float = 0.5) -> RateSchedule:
    return lambda t: float(factor ** ((t - 1) // int(every)))


def _cosine(rounds: float, low: float = 0.0) -> RateSchedule:
    return lambda t: low + (1 - low) * (1 + math.cos(math.pi * min(t - 1, rounds) / rounds)) / 2


def _warm_up(rounds: float) -> RateSchedule:
    return lambda t: min(1.0, t / rounds)


SCHEDULES: dict[str, Callable[..., RateSchedule]] = {
    "constant": lambda: lambda t: 1.0,
    "step": _step,
    "cosine": _cosine,
    "warm-up": _warm_up,
}


@lru_cache(maxsize=64)
def schedule(text: str) -> RateSchedule:
    """The factor as a function of the round.

    >>> [round(schedule("warm-up:2+cosine:4")(t), 3) for t in (1, 2, 3, 4, 5, 6)]
    [0.5, 0.854, 0.5, 0.146, 0.0, 0.0]
    """
    factors = [_one(part.strip()) for part in text.split("+")]
    return lambda t: math.prod(factor(t) for factor in factors)


def _one(text: str) -> RateSchedule:
    name, _, given = text.partition(":")
    if name not in SCHEDULES:
        raise unknown("schedule", name, list(SCHEDULES))
    try:
        numbers = [float(number) for number in given.split(",")] if given else []
        if any(not math.isfinite(number) or number < 0 for number in numbers) or (numbers and numbers[0] < 1):
            raise ValueError
        return SCHEDULES[name](*numbers)
    except (TypeError, ValueError):
        raise FedkinError(
            f"schedule {text!r}: write constant, step:rounds,factor, cosine:rounds, or warm-up:rounds"
        ) from None
