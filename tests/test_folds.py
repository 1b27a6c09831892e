from __future__ import annotations

import numpy as np
import pytest

from fedkin import Federation, FedkinError
from fedkin.federation.folds import assign, folded


def made(sizes: list[int], seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    clients = {
        f"c{k}": {"train": (rng.normal(size=(n, 2)), np.arange(n) % 2), "test": (rng.normal(size=(3, 2)), [0, 1, 0])}
        for k, n in enumerate(sizes)
    }
    return Federation.from_arrays(clients, classes=[0, 1])


def test_every_training_sample_is_held_out_once_and_test_samples_are_nowhere() -> None:
    federation = made([10, 7, 2])
    cut = folded(federation, 3)
    assert len(cut) == 9
    assert len(cut.test.x) == 0
    for k in range(3):
        own = federation.train[k][0]
        held = np.concatenate([cut.validation[f * 3 + k][0] for f in range(3)])
        assert sorted(map(tuple, held)) == sorted(map(tuple, own))
        for f in range(3):
            both = np.concatenate([cut.train[f * 3 + k][0], cut.validation[f * 3 + k][0]])
            assert sorted(map(tuple, both)) == sorted(map(tuple, own))
    seen = {tuple(x) for x in [*cut.train.x, *cut.validation.x]}
    assert not seen & {tuple(x) for x in federation.test.x}


def test_a_client_with_one_sample_stays_and_holds_out_nothing() -> None:
    cut = folded(made([1, 6]), 3)
    assert [len(cut.train[f * 2][0]) for f in range(3)] == [1, 1, 1]
    assert [len(cut.validation[f * 2][0]) for f in range(3)] == [0, 0, 0]


def test_folds_are_stratified_and_depend_on_the_name_not_on_the_place() -> None:
    federation = made([12, 12])
    y, place = federation.train[0][1], assign(federation, 0, 3, seed=5)
    assert all(sorted(y[place == f].tolist()) == [0, 0, 1, 1] for f in range(3))
    turned = federation.take([1, 0])
    assert np.array_equal(assign(turned, 1, 3, seed=5), place)
    with pytest.raises(FedkinError, match="at least 2"):
        folded(federation, 1)
