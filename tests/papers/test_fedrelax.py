"""FedRelax's figures at a small size: the bound, the baselines, and that the functions say what they measure."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedkin import Federation, FedkinError
from fedkin.papers import fedrelax
from fedkin.papers.fedrelax import baselines, figures, trees


def small(**options: float) -> list[Federation]:
    return figures.clustered(2, 0, clients=12, dimension=4, **options)


def test_variation_stays_below_the_bound_in_the_setting_of_figure_5() -> None:
    found = figures.figure_5a(runs=2, rounds=400)
    assert [claim["holds"] for claim in found["claims"]] == [True, True, True]
    for row in found["rows"]:
        assert row["mean"] < row["bound"]
        if row["alpha"] == 1e-2:
            assert row["mean"] == pytest.approx(row["reference"], rel=0.4)
            assert row["bound"] == pytest.approx(row["reference_bound"], rel=0.4)


def test_curves_of_figure_5_end_where_the_figure_has_them() -> None:
    found = figures.variation_over_rounds(alpha=0.01, noise=1.0, p_in=0.8, runs=2, rounds=400)
    union = figures.union_of(figures.clustered(2, 0, clients=50, clusters=1, dimension=10, noise=1.0, p_in=0.8))
    end = fedrelax.variation(figures.fitted(union, 0.01, 400), union.truth["cluster"]).mean()
    line, bound = found["lines"]["variation"], found["lines"]["bound"]["y"][0]
    assert line["x"] == tuple(range(20, 401, 20))
    assert found["post"]["mean"] == line["y"][-1] == pytest.approx(end)
    assert bound == pytest.approx(fedrelax.variation_bound(union, 0.01).mean())
    within = found["post"]["within"]
    assert all(y <= bound for x, y in zip(line["x"], line["y"]) if x > within)
    assert within == 0 or line["y"][line["x"].index(within)] > bound


def test_the_bound_by_hand() -> None:
    federation = small(noise=1.0)[0]
    assert federation.graph is not None
    bounds = fedrelax.variation_bound(federation, 0.1)
    for cluster in range(3):
        members = np.flatnonzero(federation.truth["cluster"] == cluster)
        a = federation.graph.adjacency.toarray()[np.ix_(members, members)]
        gap = np.linalg.eigvalsh(np.diag(a.sum(axis=1)) - a)[1]
        noise = sum(
            np.square(federation.train[int(k)][1] - federation.train[int(k)][0] @ federation.truth["weights"][k]).mean()
            for k in members
        )
        assert bounds[cluster] == pytest.approx(noise / (0.1 * gap)) if gap > 1e-9 else np.isinf(bounds[cluster])
    assert np.isinf(fedrelax.variation_bound(federation, 0.0)).all()
    with pytest.raises(FedkinError, match="needs the true weights"):
        fedrelax.variation_bound(dataclasses.replace(federation, truth={}), 0.1)


def test_runs_together_are_runs_apart() -> None:
    """Exact updates forget the initial weights, which follow the clients' names and differ."""
    federations = small()
    union = figures.fitted(figures.union_of(federations), 0.5, 60, update="exact")
    assert union.shape == (24, 4)
    assert np.allclose(union[12:], figures.fitted(federations[1], 0.5, 60, update="exact"), atol=1e-6)


def test_oracle_finds_the_truth_and_ifca_with_one_cluster_is_fedavg() -> None:
    federation = figures.clustered(1, 0, clients=30, dimension=4)[0]
    assert np.allclose(baselines.oracle(federation), federation.truth["weights"])
    one = baselines.ifca(federation, 1, steps=2000)
    x, y = federation.train.x, federation.train.y
    assert np.allclose(one[0], np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-4)
    assert np.array_equal(one, baselines.fedavg(federation, steps=2000))
    assert (one == one[0]).all()


def test_trees_gain_in_high_dimension() -> None:
    found = trees.figure_2a(runs=1, dimensions=(10,), clients=24)
    assert [row["alpha"] for row in found["rows"]] == [0.0, 0.01, 0.05]
    assert found["rows"][1]["mean"] < found["rows"][0]["mean"]
    mixture = trees.figure_3b(runs=1, rounds=200, clients=24)
    assert all(claim["holds"] for claim in mixture["claims"])


@pytest.mark.slow
def test_figure_1_against_the_reference() -> None:
    for found in (figures.figure_1b(runs=3), figures.figure_1c(runs=3)):
        for row in found["rows"]:
            assert row["mean"] == pytest.approx(row["reference"], rel=0.3, abs=0.05)
