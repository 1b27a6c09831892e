from __future__ import annotations

import numpy as np
import pytest
import torch

from fedkin.couplings import Average, ClusterAverage, Identity
from fedkin.errors import FedkinError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_row_becomes_the_weighted_mean_of_the_members(dtype: torch.dtype) -> None:
    rows = torch.randn(5, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    before = rows.clone()
    out = Average([1, 2, 3, 4, 5], members=[3, 0]).apply(rows)
    assert out.dtype == dtype
    assert out.shape == (5, 3)
    torch.testing.assert_close(out, ((rows[0] + 4 * rows[3]) / 5).expand(5, 3))
    assert torch.equal(rows, before)
    torch.testing.assert_close(Average(np.ones(5)).apply(rows), rows.mean(dim=0).expand(5, 3))


def test_rows_outside_the_cohort_are_never_read() -> None:
    rows = torch.tensor([[1.0], [float("nan")], [3.0]])
    assert Average([1, 1, 1], members=[0, 2]).apply(rows).tolist() == [[2.0]] * 3


def test_matrix_is_what_apply_does() -> None:
    average = Average([1, 2, 3, 4], members=[1, 3])
    applied = average.apply(torch.eye(4, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(average.matrix(), applied)
    np.testing.assert_allclose(average.matrix()[0], [0, 1 / 3, 0, 2 / 3])
    np.testing.assert_array_equal(Identity(3).matrix(), np.eye(3))


def test_bad_input() -> None:
    for weights in ([1.0, np.nan], [1, -1], [0, 0], [[1, 2]]):
        with pytest.raises(FedkinError, match="weights"):
            Average(weights)  # type: ignore[arg-type]
    with pytest.raises(FedkinError, match=r"shape \(2, B\)"):
        Average([1, 1]).apply(torch.zeros(3, 1))
    with pytest.raises(FedkinError, match="floating-point"):
        Identity(2).apply(torch.zeros(2, 1, dtype=torch.int64))


def test_clusters_are_averaged_apart_and_those_without_a_member_stay() -> None:
    rows = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    coupling = ClusterAverage([1, 2, 3, 4, 5, 6], ["a", "b", "a", "b", "c", "a"], members=[5, 0, 1])
    expected = rows.clone()
    expected[[0, 2, 5]] = (rows[0] + 6 * rows[5]) / 7
    expected[[1, 3]] = rows[1]
    torch.testing.assert_close(coupling.apply(rows), expected)
    torch.testing.assert_close(torch.from_numpy(coupling.matrix()) @ rows, expected)
    np.testing.assert_allclose(coupling.matrix().sum(axis=1), 1)
    torch.testing.assert_close(ClusterAverage(range(1, 7), [0] * 6).apply(rows), Average(range(1, 7)).apply(rows))
    torch.testing.assert_close(ClusterAverage([1] * 6, range(6)).apply(rows), rows)


def test_clusters_need_a_label_and_a_weight_each() -> None:
    with pytest.raises(FedkinError, match="2 cluster labels for 3 clients"):
        ClusterAverage([1, 1, 1], ["a", "b"])
    with pytest.raises(FedkinError, match="finite and positive"):
        ClusterAverage([1, 0], ["a", "b"])
