"""A note when training was not over at the last round."""

from __future__ import annotations

import numpy as np
import pytest

import fedkin
from fedkin import data
from fedkin.algorithms import Local
from fedkin.run.falling import still_falling


def told(losses: list[float | None]) -> tuple[str, ...]:
    return still_falling([{"log": {} if loss is None else {"train_loss": loss}} for loss in losses])


def test_a_loss_that_falls_steadily_is_noted_with_its_numbers() -> None:
    (note,) = told(np.linspace(2.0, 1.0, 20).tolist())
    assert "1.29 to 1.08 over the last 4 rounds" in note


def test_nothing_is_said_of_a_loss_that_settled_rose_or_was_told_for_few_rounds() -> None:
    assert told((2 * 0.5 ** np.arange(20)).tolist()) == ()
    assert told([1.0] * 20) == ()
    assert told(np.linspace(1.0, 2.0, 20).tolist()) == ()
    assert told(np.linspace(2.0, 1.0, 9).tolist()) == ()
    assert told([None] * 20) == ()


@pytest.mark.parametrize(("lr", "notes"), [(0.001, 1), (0.5, 0)])
def test_a_result_carries_the_note(lr: float, notes: int) -> None:
    federation = data.load("digits", clients=3, seed=0)
    result = fedkin.train(federation, "mlr", Local(lr=lr), rounds=10)
    assert sum("still falling" in note for note in result.notes) == notes
