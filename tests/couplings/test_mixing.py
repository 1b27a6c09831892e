from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedkin.couplings import Average, Identity, Mixing
from fedkin.errors import FedkinError

K = 6
RNG = np.random.default_rng(3)
ROWS = torch.as_tensor(RNG.normal(size=(K, 11)))
DIRECTED = RNG.random((K, K)) * (RNG.random((K, K)) < 0.6) + np.eye(K)
DIRECTED /= DIRECTED.sum(axis=1, keepdims=True)
SOME = np.array([0, 2, 5])
AMONG = DIRECTED[np.ix_(SOME, SOME)] / DIRECTED[np.ix_(SOME, SOME)].sum(axis=1, keepdims=True)
FORMS = {"dense": np.asarray, "torch": torch.as_tensor, "sparse": sp.csr_array}


@pytest.mark.parametrize("form", FORMS)
def test_row_by_row(form: str) -> None:
    found = Mixing(FORMS[form](DIRECTED)).apply(ROWS)
    for i in range(K):
        assert torch.allclose(found[i], sum(DIRECTED[i, j] * ROWS[j] for j in range(K)), atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_members_mix_among_themselves_and_the_others_keep_their_rows(form: str) -> None:
    coupling = Mixing(FORMS[form](AMONG), K, SOME)
    whole = np.eye(K)
    whole[np.ix_(SOME, SOME)] = AMONG
    assert torch.allclose(coupling.apply(ROWS), torch.as_tensor(whole) @ ROWS, atol=1e-14)
    assert np.allclose(coupling.matrix(), whole)
    assert np.allclose(coupling.sparse().toarray(), whole)


def test_a_direction_is_kept() -> None:
    """0 listens to 1, and 1 to nobody."""
    one_way = Mixing(np.array([[0.3, 0.7], [0.0, 1.0]]))
    assert np.allclose(one_way.matrix(), [[0.3, 0.7], [0.0, 1.0]])
    assert not np.allclose(one_way.matrix(), one_way.matrix().T)


def test_the_ends_are_identity_and_average() -> None:
    shares = np.array([1.0, 2, 3, 4, 5, 6])
    assert torch.equal(Mixing(np.eye(K)).apply(ROWS), Identity(K).apply(ROWS))
    equal = Mixing(np.tile(shares / shares.sum(), (K, 1)))
    assert torch.allclose(equal.apply(ROWS), Average(shares).apply(ROWS), atol=1e-14)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (np.ones((2, 3)) / 3, "one row and one column per client"),
        (np.array([[2.0, -1.0], [0.0, 1.0]]), "not negative"),
        (np.array([[0.5, 0.4], [0.0, 1.0]]), "sum to 1"),
        (np.array([[np.nan, 1.0], [0.0, 1.0]]), "finite"),
    ],
)
def test_what_is_no_mixture_is_refused(weights: Any, text: str) -> None:
    with pytest.raises(FedkinError, match=text):
        Mixing(weights)
