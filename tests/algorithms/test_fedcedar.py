from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

import fedkin
from fedkin.algorithm import Setting, State
from fedkin.algorithms.fedcedar import FedCedar
from fedkin.clients import Replies
from fedkin.couplings.clustering import lasting_names, nearest_centre
from fedkin.errors import FedkinError
from fedkin.streams import client_keys

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.fixture
def watched(watching: Any) -> Any:
    return watching(FedCedar)


@pytest.fixture
def eight(build: Any) -> Any:
    return build((14, 11, 18, 9, 12, 10, 16, 13))


def plainly(method: FedCedar, state: State, replies: Replies, setting: Setting) -> np.ndarray:
    """A round's rows as one would write them down from the paper, with k-means on the whole models."""
    names, ids = setting.names, replies.ids
    order = np.argsort(client_keys([names[k] for k in ids]))
    trained = {int(k): row for k, row in zip(ids, replies["rows"].double().numpy())}
    members = [int(k) for k in ids[order]]
    seed = setting.streams.integer("kmeans", state.round + 1) % 2**32
    n = setting.spec.layout.n_parameters
    count = min(method.clusters, len(members))
    points = np.array([trained[k] for k in members])
    labels = KMeans(count, n_init=10, max_iter=300, tol=0, random_state=seed).fit(points[:, :n]).labels_
    centres = np.array([points[labels == c].mean(axis=0) for c in range(count)])
    basis = centres[:, :n].copy()
    if method.sim_on == "updates":
        received = state.rows.double().numpy()[members]
        basis -= np.array([received[labels == c].mean(axis=0) for c in range(count)])[:, :n]
    if method.sim_on == "centred":
        basis -= basis.mean(axis=0)
    relation = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            cosine = basis[i] @ basis[j] / np.sqrt((basis[i] @ basis[i]) * (basis[j] @ basis[j]))
            relation[i, j] = max(cosine, 0.0) if i != j else 1.0
        relation[i] /= relation[i].sum()
    for _ in range(method.propagations):
        centres = relation @ centres
    everyone = np.tile(centres.mean(axis=0), (len(names), 1))
    for k, label in zip(members, labels):
        everyone[k] = centres[label]
    return everyone


@pytest.mark.parametrize("sim_on", ["params", "updates", "centred"])
@pytest.mark.parametrize("model", ["mlp:4", "bn-mlp:4"])
def test_rounds_are_those_of_the_paper(eight: Any, run: Any, watched: Any, sim_on: str, model: str) -> None:
    method = watched(**SETTINGS, clusters=3, sim_on=sim_on)
    done = run(eight, model, method, rounds=4, cohort=5)
    assert len(watched.seen) == 4
    for before, replies, after in watched.seen:
        expected = plainly(method, before, replies, done.setting)
        assert np.allclose(after.rows, expected, atol=1e-10)


def test_one_cluster_is_the_plain_mean_of_the_active(eight: Any, run: Any, watched: Any) -> None:
    done = run(eight, "bn-mlp:4", watched(**SETTINGS, clusters=1), rounds=2, cohort=5)
    for _, replies, after in watched.seen:
        assert torch.allclose(after.rows, replies["rows"].mean(dim=0).expand(8, -1), atol=1e-12)
    everyone = done.state.arrays["influence"]
    assert torch.allclose(everyone, everyone[:1].expand(8, -1))


def test_no_propagation_is_as2_and_many_give_consensus(eight: Any, run: Any) -> None:
    none = run(eight, "mlp:4", FedCedar(**SETTINGS, clusters=3, propagations=0), cohort=5)
    as2 = run(eight, "mlp:4", FedCedar(**SETTINGS, clusters=3, ablation="as2"), cohort=5)
    assert torch.equal(none.state.rows, as2.state.rows)
    assert len(torch.unique(none.state.rows, dim=0)) == 4  # three clusters and their mean
    many = run(eight, "mlp:4", FedCedar(**SETTINGS, clusters=3, propagations=5000), cohort=5)
    assert torch.allclose(many.state.rows, many.state.rows[:1].expand(8, -1), atol=1e-10)


def test_ablations(eight: Any, run: Any, watched: Any) -> None:
    run(eight, "mlp:4", watched(**SETTINGS, clusters=3, ablation="as3"), rounds=1, cohort=5)
    before, replies, after = watched.seen.pop()
    assert after.rows.stride(0) == 0  # one model for all: the mean of the propagated centres
    full = FedCedar(**SETTINGS, clusters=3)
    setting = run(eight, "mlp:4", full, rounds=1, cohort=5).setting
    idle = np.setdiff1d(np.arange(8), replies.ids)
    assert np.allclose(after.rows[0], plainly(full, before, replies, setting)[idle[0]])

    run(eight, "mlp:4", watched(**SETTINGS, ablation="as1"), rounds=1, cohort=5)
    before, replies, after = watched.seen.pop()
    nodes = FedCedar(**SETTINGS, clusters=5)  # as many clusters as clients: every client a node
    assert np.allclose(after.rows, plainly(nodes, before, replies, setting))
    assert "rand_index" not in after.log


def test_conditions_one_and_two(eight: Any, run: Any, watched: Any) -> None:
    """Who took part in the round before has its cluster's model, all others the mean; the log says who."""
    method = watched(**SETTINGS, clusters=2)
    done = run(eight, "mlp:4", method, rounds=5, cohort=4)
    names = np.array(eight.names)
    log = done.history[0]["log"]
    assert log["condition_1"] == log["condition_2"] == 0  # the common initial model
    for t in range(1, 5):
        log, now = done.history[t]["log"], watched.seen[t][1].ids
        before = watched.seen[t - 1][1].ids
        assert set(log["condition_1_clients"]) == set(names[np.intersect1d(now, before)])
        assert set(log["condition_2_clients"]) == set(names[np.setdiff1d(now, before)])
        assert log["condition_1"] + log["condition_2"] == 4
        assert log["remembered"] == 0
        assert sorted(name for members in log["clusters"].values() for name in members) == sorted(names[now])
        assert log["cluster_sizes"] == [len(members) for members in log["clusters"].values()]
        relation = np.array(log["relation"])
        assert log["diagonal"] == pytest.approx(relation.diagonal().mean())
        assert log["off_diagonal"] == pytest.approx((relation.sum() - np.trace(relation)) / 2)


def test_memory_hands_the_last_cluster_back(eight: Any, run: Any, watched: Any) -> None:
    done = run(eight, "mlp:4", watched(**SETTINGS, clusters=2, memory=True), rounds=6, cohort=4)
    last: dict[str, str] = {}
    remembered = 0
    for record, (_, replies, after) in zip(done.history, watched.seen):
        formed = record["log"]["clusters"]
        last |= {client: name for name, members in formed.items() for client in members}
        model = {name: after.rows[eight.names.index(members[0])] for name, members in formed.items()}
        mean = torch.stack(list(model.values())).mean(dim=0)
        for k, name in enumerate(eight.names):
            assert torch.allclose(after.rows[k], model[last[name]] if name in last else mean, atol=1e-12)
        remembered += record["log"]["remembered"]
        assert record["log"]["condition_1"] + record["log"]["condition_2"] + record["log"]["remembered"] in (
            0,
            len(replies),
        )
    assert remembered > 0
    assert not torch.equal(
        done.state.rows, run(eight, "mlp:4", FedCedar(**SETTINGS, clusters=2), rounds=6, cohort=4).state.rows
    )


def test_memory_without_clusters_leaves_each_client_its_node(eight: Any, run: Any, watched: Any) -> None:
    run(eight, "mlp:4", watched(**SETTINGS, ablation="as1", memory=True), rounds=4, cohort=4)
    known: set[int] = set()
    for before, replies, after in watched.seen:
        known |= {int(k) for k in replies.ids}
        for k in known - {int(k) for k in replies.ids}:
            assert torch.equal(after.rows[k], before.rows[k])


def test_every_fifth_round_samples_every_group(build: Any, run: Any) -> None:
    federation = build((9,) * 12)
    method = FedCedar(**SETTINGS, clusters=2, period=3)
    setting = run(federation, "mlp:4", method, rounds=0).setting
    plain = FedCedar(**SETTINGS, clusters=2)
    for t in range(1, 13):
        chosen = method.cohort(t, 4, setting)
        if t % 3:
            assert np.array_equal(chosen, plain.cohort(t, 4, setting))
        else:
            assert np.bincount(setting.truth["cluster"][chosen]).tolist() == [2, 2]
    own = FedCedar(clusters=2, period=1, groups=["x"] * 9 + ["y"] * 3)
    assert (own.cohort(1, 4, setting) >= 9).sum() == 1
    assert len(method.cohort(3, 12, setting)) == 12


def test_rand_index_uses_the_groups_given(eight: Any, run: Any) -> None:
    done = run(eight, "mlp:4", FedCedar(**SETTINGS, clusters=2), rounds=1)
    clusters = done.state.arrays["cluster"].tolist()
    again = run(eight, "mlp:4", FedCedar(**SETTINGS, clusters=2, groups=clusters), rounds=1)
    assert again.state.log["rand_index"] == 1
    assert done.state.log["rand_index"] < 1
    unknown = run(replace(eight, truth={}), "mlp:4", FedCedar(**SETTINGS, clusters=2), rounds=1)
    assert "rand_index" not in unknown.state.log


def test_fewer_clients_than_clusters_is_said_once(eight: Any, run: Any) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        done = run(eight, "mlp:4", FedCedar(**SETTINGS), rounds=3, cohort=3)
    messages = [str(w.message) for w in said if "fedcedar" in str(w.message)]
    assert len(messages) == 1
    assert "clusters = 5, more than the active clients (3) in round 1" in messages[0]
    assert [record["log"]["cluster_sizes"] for record in done.history] == [[1, 1, 1]] * 3


@pytest.mark.parametrize(
    ("parameters", "truth", "message"),
    [
        ({"propagations": -1}, True, "propagations = -1 is not allowed: input should be greater than or equal to 0"),
        ({"clusters": 0}, True, "clusters = 0 is not allowed"),
        ({"temperature": 0}, True, "temperature = 0 is not allowed"),
        ({"groups": ["a", "b"]}, True, "fedcedar: groups has 2 labels for 4 clients"),
        ({"groups": {"site-0": 1}}, True, "fedcedar: groups has no label for client 'site-1'"),
        ({"period": 5}, False, "period=5 samples inside groups, but this federation tells none"),
    ],
)
def test_bad_input(federation: Any, run: Any, parameters: Any, truth: bool, message: str) -> None:
    data = federation if truth else replace(federation, truth={})
    with pytest.raises(FedkinError, match=message) as problem:
        run(data, "mlp:4", FedCedar(**parameters))
    assert "\n" not in str(problem.value)


def test_a_topology_needs_a_client_for_every_group() -> None:
    with pytest.raises(FedkinError, match="topology: 4 clients for 5 groups; use at least 5 clients"):
        fedkin.data.load("digits", clients=4, partition="topology:3")


def test_resumes_with_memory_and_groups(eight: Any, tmp_path: Any) -> None:
    method = FedCedar(
        **SETTINGS, clusters=2, memory=True, period=2, groups={name: n % 2 for n, name in enumerate(eight.names)}
    )
    options = {"cohort": 4, "checkpoint_every": 1, "seed": 3}
    whole = fedkin.train(eight, "mlp:4", method, rounds=5, out=tmp_path / "whole", **options)
    fedkin.train(eight, "mlp:4", method, rounds=2, out=tmp_path / "part", **options)
    resumed = fedkin.resume(tmp_path / "part", eight, rounds=5)
    assert np.array_equal(whole.rows, resumed.rows)
    assert [r["log"] for r in resumed.history] == [r["log"] for r in whole.history]


def test_large_weights_do_not_overflow_when_clusters_are_named() -> None:
    """Squares of float32 numbers end at 1.8e19²."""
    centres = torch.tensor([[3.6e19, 0.0], [0.0, 3.6e19]])
    assert lasting_names(centres, centres.flip(0)).tolist() == [1, 0]
    assert nearest_centre(centres, centres.flip(0)).tolist() == [1, 0]


def test_rounds_in_groups_may_be_any_set() -> None:
    method = FedCedar(clusters=2, period=[2, 3, 7])
    assert [t for t in range(1, 9) if method.in_groups(t)] == [2, 3, 7]
    assert [t for t in range(1, 9) if FedCedar(clusters=2, period=3).in_groups(t)] == [3, 6]
    assert not any(FedCedar(clusters=2).in_groups(t) for t in range(1, 9))
    for wrong in (0, [0, 2], []):
        with pytest.raises(FedkinError, match="rounds are counted from 1"):
            FedCedar(clusters=2, period=wrong)
