"""Robust couplings: against slow versions of their own, in their limits, and with rows that may be anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from fedkin.couplings import Average, ClusterAverage, Coupling, GraphFilter, LaplacianStep, Mixing, aggregation
from fedkin.couplings.robust import NormBounded, Robust, clipping, in_the_crowd, of_clipped, replacing
from fedkin.couplings.trust import by_direction, by_evidence, together, trust_in
from fedkin.graphs import ClientGraph

K, B = 7, 5
ROWS = torch.from_numpy(np.random.default_rng(0).normal(size=(K, B)))
EQUAL = torch.full((K,), 1 / K, dtype=torch.float64)


def ring() -> ClientGraph:
    adjacency = np.zeros((K, K))
    for k in range(K):
        adjacency[k, (k + 1) % K] = adjacency[(k + 1) % K, k] = 1 + k / 10
        adjacency[k, (k + 2) % K] = adjacency[(k + 2) % K, k] = 0.5
    return ClientGraph(adjacency)


def couplings() -> list[Coupling]:
    weights = np.random.default_rng(1).random((K, K))
    weights /= weights.sum(axis=1, keepdims=True)
    return [
        Average(np.arange(1, K + 1)),
        Average(np.arange(1, K + 1), [0, 2, 3]),
        ClusterAverage(np.ones(K), [0, 0, 0, 1, 1, 1, 2]),
        LaplacianStep(ring(), 0.1),
        LaplacianStep(ring(), 0.1, [1, 2, 5]),
        LaplacianStep(ring(), 0.1, [1, 2, 5], "all"),
        GraphFilter(ring(), "soft", 0.3),
        Mixing(weights),
        Mixing(sp.csr_array(weights[:3, :3] / weights[:3, :3].sum(axis=1, keepdims=True)), K, np.array([1, 4, 6])),
    ]


@pytest.mark.parametrize("coupling", couplings(), ids=repr)
def test_groups_are_the_rows_of_the_matrix(coupling: Coupling) -> None:
    matrix = np.zeros((K, K))
    for clients, sources, weights in coupling.groups():
        matrix[np.ix_(clients, sources)] = weights
    np.testing.assert_allclose(matrix, coupling.matrix(), atol=1e-12)
    np.testing.assert_allclose(coupling.sparse().toarray(), coupling.matrix(), atol=1e-12)


@pytest.mark.parametrize("coupling", couplings(), ids=repr)
@pytest.mark.parametrize(
    "rule",
    [
        clipping(np.inf),
        replacing(lambda v, w: aggregation.trimmed_mean(v, w, 0.0)),
        of_clipped(replacing(lambda v, w: aggregation.winsorised(v, w, np.inf)), np.inf),
    ],
    ids=["clip at infinity", "nothing trimmed", "nothing moved"],
)
def test_without_its_guard_a_robust_coupling_is_the_plain_one(coupling: Coupling, rule: Callable[..., object]) -> None:
    robust = Robust(coupling, rule)  # type: ignore[arg-type]
    torch.testing.assert_close(robust.apply(ROWS), coupling.apply(ROWS))
    assert robust.shares is not None
    np.testing.assert_allclose(robust.shares.toarray(), coupling.matrix(), atol=1e-9)


def test_norm_bounding_at_infinity_is_the_plain_coupling() -> None:
    plain = LaplacianStep(ring(), 0.1)
    torch.testing.assert_close(NormBounded(plain, torch.zeros_like(ROWS), np.inf).apply(ROWS), plain.apply(ROWS))


def test_clipping_is_the_formula_of_clipped_gossip() -> None:
    plain = LaplacianStep(ring(), 0.1)
    matrix, rows = plain.matrix(), ROWS.numpy()
    expected = rows.copy()
    for i in range(K):
        others = [j for j in range(K) if j != i and matrix[i, j]]
        apart = {j: np.linalg.norm(rows[j] - rows[i]) for j in others}
        tau = weighted_median([apart[j] for j in others], [matrix[i, j] for j in others])
        for j in others:
            expected[i] += matrix[i, j] * (rows[j] - rows[i]) * min(1, tau / apart[j])
    np.testing.assert_allclose(Robust(plain, clipping()).apply(ROWS).numpy(), expected, atol=1e-12)


def weighted_median(values: list[float], weights: list[float]) -> float:
    """The smallest value with half of the weight at or below it, by counting copies; no ties at one half here."""
    order = np.argsort(values)
    below = np.cumsum(np.array(weights)[order]) / np.sum(weights)
    return float(np.array(values)[order][np.searchsorted(below, 0.5)])


def test_the_trimmed_mean_of_equal_weights_is_scipys() -> None:
    from scipy.stats import trim_mean

    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(10, B)))
    found, shares = aggregation.trimmed_mean(rows, torch.full((10,), 0.1, dtype=torch.float64), 0.2)
    np.testing.assert_allclose(found, trim_mean(rows.numpy(), 0.2, axis=0), atol=1e-9)
    assert float(shares.sum()) == pytest.approx(1)


@pytest.mark.parametrize("count", [6, 7])
def test_the_median_of_equal_weights_is_numpys(count: int) -> None:
    found, _ = aggregation.median(ROWS[:count], torch.full((count,), 1 / count, dtype=torch.float64))
    np.testing.assert_allclose(found, np.median(ROWS[:count].numpy(), axis=0), atol=1e-6)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_quick_median_is_the_median(count: int, equal: bool) -> None:
    rng = np.random.default_rng(count)
    rows = torch.from_numpy(np.append(rng.normal(size=(count, 40)), rng.integers(0, 3, (count, 40)), axis=1))
    weights = torch.from_numpy(np.ones(count) if equal else rng.random(count))
    weights /= weights.sum()
    torch.testing.assert_close(
        aggregation.middle(rows, weights), aggregation.median(rows, weights)[0], atol=1e-6, rtol=0
    )


def test_a_weight_counts_as_so_many_copies() -> None:
    copies = ROWS[[0, 1, 1, 1, 2]]
    once, _ = aggregation.trimmed_mean(ROWS[:3], torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64), 0.3)
    each, _ = aggregation.trimmed_mean(copies, torch.full((5,), 0.2, dtype=torch.float64), 0.3)
    torch.testing.assert_close(once, each)


def test_the_geometric_median_has_the_least_sum_of_distances() -> None:
    from scipy.optimize import minimize

    weights = torch.arange(1, K + 1).double() / 28
    found, shares = aggregation.geometric_median(ROWS, weights)

    def far(v: np.ndarray) -> float:
        return float((weights.numpy() * np.linalg.norm(ROWS.numpy() - v, axis=1)).sum())

    best = minimize(far, np.zeros(B), tol=1e-10)
    np.testing.assert_allclose(found, best.x, atol=1e-4)
    torch.testing.assert_close(shares @ ROWS, found)


def test_a_winsorised_mean_is_that_of_values_moved_to_its_bounds() -> None:
    from scipy.stats import median_abs_deviation

    rows, weights = np.random.default_rng(3).standard_t(1.5, size=(9, B)), np.full(9, 1 / 9)
    middle, reach = np.median(rows, axis=0), 2 * 1.4826 * median_abs_deviation(rows, axis=0)
    found, shares = aggregation.winsorised(torch.from_numpy(rows), torch.from_numpy(weights), 2.0)
    np.testing.assert_allclose(found, np.clip(rows, middle - reach, middle + reach).mean(axis=0), atol=1e-9)
    assert float(shares.sum()) == pytest.approx(1)


def test_a_winsorised_mean_stops_a_minority_in_the_coordinates_where_the_others_agree() -> None:
    rows = torch.from_numpy(np.random.default_rng(4).normal(size=(20, 50)))
    rows[:, :2] *= 0.01
    rows[:4, :2] = 1.0  # a mark: large in two coordinates, nothing in the length of the row
    weights = torch.full((20,), 0.05, dtype=torch.float64)
    assert float((weights @ rows)[:2].min()) > 0.19
    assert float(clipping(3.0)(rows, weights, None)[0][:2].min()) > 0.19
    assert float(of_clipped(replacing(aggregation.winsorised), 3.0)(rows, weights, None)[0][:2].abs().max()) < 0.03


def test_krum_picks_the_row_with_the_nearest_neighbours() -> None:
    f, scores = int(0.25 * K), []
    for i in range(K):
        square = sorted(float(((ROWS[i] - ROWS[j]) ** 2).sum()) for j in range(K) if j != i)
        scores.append(sum(square[: K - f - 2]))
    torch.testing.assert_close(aggregation.krum(ROWS, EQUAL)[0], ROWS[int(np.argmin(scores))])


def test_bulyan_averages_what_is_nearest_the_median_of_krums_choices() -> None:
    rows, f = np.random.default_rng(3).normal(size=(11, 2)), 2
    left, chosen = list(range(11)), []
    while len(chosen) < 11 - 2 * f:
        scores = []
        for i in left:
            square = sorted(((rows[i] - rows[j]) ** 2).sum() for j in left if j != i)
            scores.append(sum(square[: max(1, len(left) - f - 2)]))
        chosen.append(left.pop(int(np.argmin(scores))))
    picked = rows[chosen]
    expected = []
    for column in picked.T:
        nearest = sorted(column, key=lambda v: abs(v - np.median(column)))[: len(chosen) - 2 * f]
        expected.append(np.mean(nearest))
    weights = torch.full((11,), 1 / 11, dtype=torch.float64)
    np.testing.assert_allclose(aggregation.bulyan(torch.from_numpy(rows), weights, 0.2)[0], expected, atol=1e-9)


AGGREGATES = [
    aggregation.median,
    aggregation.trimmed_mean,
    aggregation.geometric_median,
    aggregation.winsorised,
    aggregation.krum,
    aggregation.bulyan,
]


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda a: a.__name__)
@pytest.mark.parametrize("far", [1e3, 1e9])
def test_a_quarter_of_hostile_rows_cannot_take_an_aggregate_away(
    aggregate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], far: float
) -> None:
    rows = torch.from_numpy(np.random.default_rng(4).normal(size=(20, B)))
    weights = torch.full((20,), 0.05, dtype=torch.float64)
    rows[:4] = far
    assert float(aggregate(rows, weights)[0].norm()) < 5
    assert float((weights @ rows).norm()) > 100


@pytest.mark.parametrize(
    "plain", [Average(np.ones(20)), LaplacianStep(ClientGraph(np.ones((20, 20)) - np.eye(20)), 0.05)]
)
def test_clipping_bounds_what_hostile_rows_do(plain: Coupling) -> None:
    rows = torch.from_numpy(np.random.default_rng(5).normal(size=(20, B)))
    honest = plain.apply(rows)[4:]
    rows[:4] = 1e6
    guarded = Robust(plain, clipping()).apply(rows)[4:]
    assert float((guarded - honest).norm(dim=1).max()) < 3
    assert float((plain.apply(rows)[4:] - honest).norm(dim=1).min()) > 1e5


def test_norm_bounding_leaves_short_updates_and_shortens_long_ones() -> None:
    before = torch.zeros((4, 1), dtype=torch.float64)
    rows = torch.tensor([[1.0], [-1.0], [1.0], [100.0]], dtype=torch.float64)
    found = NormBounded(Average(np.ones(4)), before, 2.0).apply(rows)
    assert found[0].item() == pytest.approx((1 - 1 + 1 + 2) / 4)


def test_evidence_takes_weight_from_a_model_that_does_badly_and_gives_it_to_oneself() -> None:
    plain = Mixing(np.full((4, 4), 0.25) + np.diag([0.0, 0.01, 0.02, 0.03]) - np.array([[0, 0, 0, 0], [0.01, 0, 0, 0], [0.02, 0, 0, 0], [0.03, 0, 0, 0]]))  # fmt: skip

    def evidence(pairs: sp.csr_array) -> tuple[sp.csr_array, np.ndarray]:
        losses = pairs.copy()
        losses.data = np.where(pairs.indices == 3, 6.0, 0.5 + 0.01 * pairs.indices)
        return losses, np.full(4, 0.02)

    coupling = Robust(plain, clipping(np.inf), by_evidence(evidence))
    coupling.apply(torch.randn((4, 2), generator=torch.Generator().manual_seed(0)))
    assert coupling.shares is not None
    shares = coupling.shares.toarray()
    assert (shares[:3, 3] < 1e-6).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert shares[0, 0] == pytest.approx(0.5, abs=1e-6)


def test_trust_is_full_in_the_better_half_and_falls_with_the_loss() -> None:
    trust = trust_in(np.array([0.1, 0.2, 0.3, 0.4, 3.0]), 0.0)
    np.testing.assert_allclose(trust[:3], 1)
    np.testing.assert_allclose(trust[3:], np.exp([-0.1 / 0.2, -2.7 / 0.2]))
    np.testing.assert_allclose(trust_in(np.array([0.3, 0.3, 0.3]), 0.0), 1)


def updates(hostile: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that clients started from and ended at: six move about one way, one as `hostile` says (B,)."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn((K, B), generator=generator, dtype=torch.float64)
    step = torch.ones((K, B), dtype=torch.float64) + 0.3 * torch.randn((K, B), generator=generator, dtype=torch.float64)
    step[6] = hostile
    return before, before + step


@pytest.mark.parametrize("plain", [Average(np.ones(K)), Mixing(np.full((K, K), 1 / K) + np.diag(1e-6 * np.arange(K)))])
def test_who_goes_the_other_way_has_no_share_and_who_goes_along_keeps_it(plain: Coupling) -> None:
    for hostile, share in ((-0.5, 0.0), (-20.0, 0.0), (1.0, 1 / K)):
        before, rows = updates(torch.full((B,), hostile, dtype=torch.float64))
        coupling = Robust(plain, clipping(np.inf), by_direction(before))
        coupling.apply(rows)
        assert coupling.shares is not None
        found = coupling.shares.toarray()[:6, 6]
        np.testing.assert_allclose(found, share, atol=0.03 if share else 1e-12)


def test_without_a_common_direction_nobody_is_judged() -> None:
    rows = torch.zeros((4, 2), dtype=torch.float64)
    before = -torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    plain = Average(np.ones(4))
    for start in (before, rows):  # opposite ways; no way at all
        coupling = Robust(plain, clipping(np.inf), by_direction(start))
        coupling.apply(rows)
        assert coupling.shares is not None
        np.testing.assert_allclose(coupling.shares.toarray(), 0.25)


def test_liars_do_not_change_what_clients_say_together() -> None:
    losses = np.tile(np.array([0.1, 0.2, 0.3, 5.0]), (20, 1))
    honest, _ = together(losses, np.zeros((20, 4), dtype=bool))
    losses[:4] = losses[:4, ::-1]
    told, _ = together(losses, np.zeros((20, 4), dtype=bool))
    np.testing.assert_allclose(told, honest)


def test_a_row_far_from_the_crowd_is_told() -> None:
    rows = torch.from_numpy(np.random.default_rng(6).normal(size=(20, B)))
    rows[3] = 1e8
    assert np.flatnonzero(~in_the_crowd(rows)).tolist() == [3]
