from __future__ import annotations

import runpy
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import fedkin
from fedkin.algorithms import FedCedar
from fedkin.diagnostics.structure import Structure, recovered, true_structure
from fedkin.errors import FedkinError


def test_the_true_structure_is_that_of_the_topology() -> None:
    federation = fedkin.data.load("digits", clients=12, partition="topology:1")
    true = true_structure(federation)
    assert np.array_equal(true.weights, [[1, 1, 0], [1, 1, 1], [0, 1, 1]])
    assert true.cluster.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert true.graph() == federation.graph
    with pytest.raises(FedkinError, match="unknown"):
        true_structure(fedkin.data.load("digits", clients=3))


def test_recovered_takes_the_last_cluster_of_each_client_and_the_last_relation() -> None:
    history = [
        {"log": {"clusters": {"0": ["a", "b"], "1": ["c"], "2": ["e"]}, "relation": np.eye(3).tolist()}},
        {"log": {"clusters": {"1": ["a"], "0": ["d"], "3": ["f"]}, "relation": [[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8]]}},
    ]  # fmt: skip
    found = recovered(history)
    assert found.clients == ("a", "b", "c", "d", "f")  # e's cluster was not formed again
    assert found.cluster.tolist() == [0, 1, 0, 1, 2]
    assert np.allclose(found.weights, [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    assert found.graph().neighbours("a") == {"b": 1.0, "c": 1.0, "d": 1.0}
    with pytest.raises(FedkinError, match="FedCedar run"):
        recovered([{"log": {}}])


def test_aligned_moves_clusters_where_the_other_has_them() -> None:
    true = Structure(("a", "b", "c", "d"), np.array([0, 0, 1, 1]), np.eye(2))
    found = Structure(("b", "c", "d"), np.array([1, 0, 2]), np.array([[1, 0.7, 0.1], [0.7, 1, 0.2], [0.1, 0.2, 1]]))
    aligned = found.aligned(true)
    assert aligned.cluster[0] == 0
    assert 1 in aligned.cluster[1:]
    assert aligned.graph() == found.graph()


def test_digits_in_groups_are_found_and_drawn() -> None:
    """Two groups without a common label: every round's clusters are the groups."""
    federation = fedkin.data.load("digits", clients=8, partition="topology:0,1|8,9", seed=0)
    method = FedCedar(clusters=2, period=2, epochs=3, batch_size=8)
    result = fedkin.train(federation, "mlp", method, rounds=6, cohort=4, seed=0)
    assert [record["log"]["rand_index"] for record in result.history] == [1.0] * 6
    true = true_structure(federation)
    found = recovered(result.history).aligned(true)
    assert [true.cluster[true.clients.index(name)] for name in found.clients] == found.cluster.tolist()
    with matplotlib.rc_context({"backend": "agg"}):
        ax = found.draw(colours=["red"] * len(found.clients))
    assert sum(len(points.get_offsets()) for points in ax.collections) == len(found.clients)  # type: ignore[arg-type]


def test_the_case_study_runs_with_a_topology_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "structured_clients.py"))
    out = tmp_path / "picture.png"
    example["main"](["--data", "digits", "--topology", "0,1,2|2,3,4", "--rounds", "5", "--out", str(out)])
    assert out.stat().st_size > 1000
    assert "topology 0,1,2|2,3,4: Rand index" in capsys.readouterr().out
