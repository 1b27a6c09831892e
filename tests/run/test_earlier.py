"""A run that begins from another: rows and private state by name, the mean for newcomers, a graph that grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedkin
from fedkin import data
from fedkin.errors import FedkinError
from fedkin.graphs import ClientGraph
from fedkin.graphs.growing import graph_for

FEDERATION = data.load("digits", clients=5, partition="dirichlet:0.5", seed=0)
LESS, MORE = FEDERATION.take(range(4)), FEDERATION


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("first") / "run"
    fedkin.train(LESS, "mlp:8", "fedbn", rounds=2, out=out)
    return out


def test_rows_by_name_and_the_mean_for_a_newcomer(first: Path) -> None:
    before = fedkin.load(first)
    after = fedkin.train(MORE.take([4, 2, 0, 1, 3]), "mlp:8", "fedbn", rounds=0, start=first)
    rows = torch.as_tensor(before.server_rows)
    assert torch.allclose(
        torch.as_tensor(after.server_rows), torch.stack([rows.mean(0), rows[2], rows[0], rows[1], rows[3]])
    )
    assert any("the mean row for 1 newcomers" in note for note in after.notes)


def test_going_on_from_a_run_is_going_on_with_it(tmp_path: Path) -> None:
    whole = fedkin.train(LESS, "bn-mlp:6", "local", rounds=2, out=tmp_path / "a")
    again = fedkin.train(LESS, "bn-mlp:6", "local", rounds=0, start=tmp_path / "a")
    for name in LESS.names:  # all of Local's tensors are private: they were carried over in full
        mine, theirs = again.models[name].state_dict(), whole.models[name].state_dict()
        assert all(torch.equal(mine[key], value) for key, value in theirs.items())
    new = fedkin.train(MORE, "bn-mlp:6", "local", rounds=1, start=tmp_path / "a")
    assert np.isfinite(new.metrics["deployed"][new.metric]).all()


def test_another_model_takes_what_has_the_same_shape(first: Path) -> None:
    wider = fedkin.train(LESS, "mlp:8,8", "fedavg", rounds=0, start=first)
    assert any("of 6 tensors" in note for note in wider.notes)
    with pytest.raises(FedkinError, match="no tensor of"):
        fedkin.train(LESS, "mlp:9", "fedavg", rounds=0, start=_odd(first))


def _odd(first: Path) -> Path:
    out = first.parent / "odd"
    if not out.exists():
        rng = np.random.default_rng(0)
        small = fedkin.Federation.from_arrays(
            {f"c{k}": (rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for k in range(2)}
        )
        fedkin.train(small, "mlp:5", "fedavg", rounds=1, out=out)
    return out


def test_the_graph_grows_and_shrinks(first: Path) -> None:
    graph = ClientGraph(np.roll(np.eye(4), 1, 0) + np.roll(np.eye(4), -1, 0), names=LESS.names)
    grown, told = graph_for(graph, MORE.names)
    assert told is not None
    assert repr(MORE.names[4]) in told
    assert grown.degrees[4] == pytest.approx(graph.degrees.mean())
    assert (grown.take(range(4)).adjacency != graph.adjacency).nnz == 0
    back, told = graph_for(grown, LESS.names)
    assert told is not None
    assert back == graph
    with pytest.warns(UserWarning, match="linked to every client evenly"):
        fedkin.train(MORE, "mlp:8", "fedpnp", graph=graph, rounds=1)
    with pytest.raises(FedkinError, match="lacks client"):
        graph_for(graph, [*LESS.names[:3], "another"])
