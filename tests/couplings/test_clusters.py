from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkin.couplings import Average, ClusterAverage, ClusterPropagation
from fedkin.couplings.clusters import KEEP, MEAN, cosines, relate
from fedkin.errors import FedkinError

MEMBERS, LABELS = [4, 0, 2, 5, 1], np.array([0, 1, 0, 2, 1])
HAND_BACK = [1, 1, 0, MEAN, 0, 2, KEEP]


def rows(seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(7, 6)))


def relation(seed: int = 1) -> np.ndarray:
    return relate(cosines(torch.from_numpy(np.random.default_rng(seed).normal(size=(3, 4)) + 1)))


def test_is_assign_average_propagate_hand_back() -> None:
    coupling = ClusterPropagation(MEMBERS, LABELS, HAND_BACK, relation(), propagations=2)
    x, r = rows().numpy(), relation()
    centres = np.array([(x[4] + x[2]) / 2, (x[0] + x[1]) / 2, x[5]])
    models = r @ (r @ centres)
    expected = np.array([models[1], models[1], models[0], models.mean(axis=0), models[0], models[2], x[6]])
    assert np.allclose(coupling.apply(rows()), expected)
    assert np.allclose(coupling.matrix() @ x, expected)
    assert np.allclose(coupling.matrix().sum(axis=1), 1)
    assert (coupling.matrix() >= 0).all()


def test_rows_that_do_not_take_part_are_not_read() -> None:
    x = rows()
    x[3] = torch.nan
    assert torch.isfinite(ClusterPropagation(MEMBERS, LABELS, HAND_BACK).apply(x)).all()


def test_limits() -> None:
    one = ClusterPropagation([0, 2], [0, 0], [0, MEAN, 0])
    assert np.allclose(one.matrix(), Average([1, 1, 1], [0, 2]).matrix())
    weights = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    sized = ClusterPropagation(np.arange(5), LABELS, LABELS, weights=weights)
    assert np.allclose(sized.matrix(), ClusterAverage(weights, LABELS).matrix())
    everyone = ClusterPropagation(MEMBERS, LABELS, [MEAN] * 7, relation(), 3).apply(rows())
    assert everyone.stride(0) == 0  # one row seen by all
    consensus = ClusterPropagation(MEMBERS, LABELS, HAND_BACK, relation(), 10_000).models(rows())
    assert torch.allclose(consensus, consensus[:1].expand(3, -1), atol=1e-10)
    assert torch.equal(
        ClusterPropagation(MEMBERS, LABELS, HAND_BACK, relation(), 0).apply(rows()),
        ClusterPropagation(MEMBERS, LABELS, HAND_BACK).apply(rows()),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0, 2], [0, 0]), "no empty cluster"),
        (([0, 1], [0], [0, 0]), "one label per member"),
        (([], [], [0, 0]), "no empty cluster"),
        (([0], [0], [0, 0], np.eye(1), -1), "propagations = -1; use 0 or more"),
    ],
)
def test_bad_input(arguments: Any, message: str) -> None:
    with pytest.raises(FedkinError, match=message):
        ClusterPropagation(*arguments)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(0, 1000),
    st.one_of(st.none(), st.floats(1e-4, 100)),
    st.booleans(),
)
def test_rows_of_the_relation_sum_to_one(count: int, seed: int, temperature: float | None, minmax: bool) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(count, 3)) * rng.integers(0, 2, size=(count, 1))  # some are zero
    found = relate(cosines(torch.from_numpy(centres)), temperature, minmax)
    assert np.allclose(found.sum(axis=1), 1)
    assert (found >= 0).all()
    assert (found.diagonal() > 0).all()


def test_cosines_are_those_of_the_definition() -> None:
    centres = np.random.default_rng(2).normal(size=(4, 70_000))
    for i in range(4):
        for j in range(4):
            cosine = centres[i] @ centres[j] / np.linalg.norm(centres[i]) / np.linalg.norm(centres[j])
            assert cosines(torch.from_numpy(centres))[i, j] == pytest.approx(cosine)


def test_negative_cosines_are_cut_and_the_options_do_what_they_say() -> None:
    similarity = np.array([[1.0, 0.99, 0.98], [0.99, 1.0, 0.97], [0.98, 0.97, 1.0]])
    assert np.allclose(relate(similarity)[0], np.array([1, 0.99, 0.98]) / 2.97)
    stretched = relate(similarity, minmax=True)
    assert np.allclose(stretched * [[2.5], [2.0], [1.5]], [[1, 1, 0.5], [1, 1, 0], [0.5, 0, 1]])
    soft = relate(similarity, temperature=0.01)
    assert np.allclose(soft[0], np.exp([0, -1, -2]) / np.exp([0, -1, -2]).sum())
    assert relate(similarity, temperature=1e-3).diagonal().min() > 0.99 > 0.34 > relate(similarity).diagonal().max()
    assert np.array_equal(relate(np.array([[1.0, -0.5], [-0.5, 1.0]])), np.eye(2))
    alike = np.full((3, 3), 0.5) + 0.5 * np.eye(3)
    assert np.array_equal(relate(alike, minmax=True), relate(alike))
