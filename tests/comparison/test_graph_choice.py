"""Choosing a graph on held-out samples: the losses by hand, the right graph found, test samples untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedkin import ClientGraph, Federation, FedkinError, data
from fedkin.algorithms import FedRelax, FedU
from fedkin.comparison import choose_graph
from fedkin.federation.folds import whole_training, without_fold
from fedkin.federation.split import Split
from fedkin.graphs import empty

EXACT: dict[str, Any] = {"alpha": 0.5, "update": "exact"}


@pytest.fixture
def federation() -> Federation:
    return data.load("clusters", clients=6, clusters=2, dimension=5, noise=0.3, samples=8, public=20, seed=1)


def graphs(federation: Federation) -> dict[str, ClientGraph | str]:
    same = np.equal.outer(federation.truth["cluster"], federation.truth["cluster"]).astype(float)
    np.fill_diagonal(same, 0)
    other = 1 - same - np.eye(len(federation))
    return {
        "strangers": ClientGraph(other, federation.names),
        "kin": ClientGraph(same, federation.names),
        "alone": empty(federation.names),
    }


def test_kin_are_chosen_and_the_losses_are_those_of_a_loop(federation: Federation) -> None:
    candidates = graphs(federation)
    found = choose_graph(federation, "linear", FedRelax(**EXACT), candidates, folds=2, rounds=6, dtype="float64")
    assert found.name == "kin"
    assert found.graph is candidates["kin"]
    assert str(found).splitlines()[1].startswith("* kin")
    # Alone, exact updates are least squares on what is left of a client's samples.
    by_hand = []
    for fold in range(2):
        part = without_fold(whole_training(federation), 2, fold)
        errors = []
        for (x, y), (hx, hy) in zip(part.train, part.validation):
            errors.append(np.square(hx @ np.linalg.lstsq(x, y.ravel(), rcond=None)[0] - hy.ravel()))
        by_hand.append(np.concatenate(errors).mean())
    np.testing.assert_allclose(found.losses["alone"], by_hand, rtol=1e-8)


def test_folds_share_out_training_and_validation_samples_and_nothing_else(federation: Federation) -> None:
    parts = [without_fold(whole_training(federation), 3, fold) for fold in range(3)]
    for k in range(len(federation)):
        own = sorted(map(tuple, np.concatenate([federation.train[k][0], federation.validation[k][0]])))
        held = sorted(map(tuple, np.concatenate([part.validation[k][0] for part in parts])))
        assert held == own
        for part in parts:
            assert sorted(map(tuple, np.concatenate([part.train[k][0], part.validation[k][0]]))) == own
    assert all(not part.test.sizes.any() for part in parts)


def test_test_samples_cannot_be_seen(federation: Federation) -> None:
    spoilt = [(x, y + 1e6) for x, y in federation.test]
    other = replace(federation, test=Split.join(spoilt))
    names = ["empty", "complete"]
    one, two = (choose_graph(f, "linear", FedU(lr=0.01), names, folds=2, rounds=1) for f in (federation, other))
    assert all(np.array_equal(one.losses[name], two.losses[name]) for name in names)


def test_what_is_refused(federation: Federation) -> None:
    with pytest.raises(FedkinError, match="no graph to choose from"):
        choose_graph(federation, "linear", FedU(), [])
    with pytest.raises(FedkinError, match="at least 2"):
        choose_graph(federation, "linear", FedU(), ["empty"], folds=1)
