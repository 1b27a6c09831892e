from __future__ import annotations

import numpy as np

from fedkin.run.deployed import choose_trained


def told(before: list[float], after: list[float]) -> dict[str, dict[str, list[float]]]:
    return {"pre": {"validation_loss": before}, "post": {"validation_loss": after}}


def test_many_samples_decide_for_themselves() -> None:
    found = choose_trained("validated", told([1.0, 1.0, 1.0], [0.5, 0.5, 1.2]), np.array([1000, 1000, 1000]))
    assert found.tolist() == [True, True, False]


def test_a_handful_of_samples_follows_the_federation() -> None:
    """Two samples speak against local training, but for everybody else it pays."""
    before, after = [1.0] * 10, [0.5] * 9 + [1.1]
    assert choose_trained("validated", told(before, after), np.array([50] * 9 + [2])).all()
    assert not choose_trained("validated", told(before, after), np.array([50] * 9 + [500]))[-1]


def test_a_client_without_validation_samples_follows_the_federation() -> None:
    found = choose_trained("validated", told([1.0, 1.0, float("nan")], [2.0, 2.0, float("nan")]), np.array([9, 9, 0]))
    assert not found.any()


def test_without_validation_samples_the_trained_model_is_deployed() -> None:
    nothing = {"pre": {"test_loss": [1.0, 1.0]}, "post": {"test_loss": [2.0, 2.0]}}
    assert choose_trained("validated", nothing, np.zeros(2)).all()
    assert not choose_trained("received", nothing, np.zeros(2)).any()
