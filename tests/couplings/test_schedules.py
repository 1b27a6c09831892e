from __future__ import annotations

import pytest

from fedkin.couplings.schedules import checked_schedule, constant, decreasing, increasing_rank
from fedkin.errors import FedkinError


@pytest.mark.parametrize(("beta", "first"), [(0.05, 30), (0.005, 52), (0.0005, 74)])
def test_the_final_strength_is_in_force_from_the_stated_round(beta: float, first: int) -> None:
    schedule = decreasing(beta, nu0=1.0, eta=0.1)
    assert schedule(1) == 1.0
    assert schedule(first - 1) > beta
    assert schedule(first) == beta
    assert schedule(400) == beta


def test_rank_grows_to_tau_and_stays() -> None:
    assert [increasing_rank(4)(t) for t in range(1, 8)] == [1, 2, 3, 4, 4, 4, 4]
    assert constant(0.3)(17) == 0.3
    assert decreasing(0.0, nu0=0.0)(5) == 0.0


def test_bad_schedules_are_refused() -> None:
    for bad in ({"beta": -1.0}, {"beta": 1.0, "eta": 2.0}, {"beta": 1.0, "nu0": float("nan")}):
        with pytest.raises(FedkinError, match="schedule"):
            decreasing(**bad)
    with pytest.raises(FedkinError, match="at least 1"):
        increasing_rank(0)
    with pytest.raises(FedkinError, match="round 3"):
        checked_schedule(lambda t: 1.0 if t < 3 else -1.0)(3)
    assert checked_schedule(lambda t: 0.5)(3) == 0.5
