"""SFL: propagation, the two pulls, limits, learned graphs and refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import fedkin
from fedkin.algorithms import SFL, FedProx
from fedkin.couplings.propagation import Propagation, with_self_loops
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph, complete, empty
from fedkin.run import Run, make_run


def pairs(federation: Federation) -> ClientGraph:
    return ClientGraph([[0, 1, 0, 0], [1, 0, 2, 0], [0, 2, 0, 0], [0, 0, 0, 0]], federation.names)


def finished(federation: Federation, method: SFL | FedProx, graph: ClientGraph | None = None, rounds: int = 2) -> Run:
    from fedkin.run.options import make_options

    run = make_run(federation, "mlp:4", method, make_options(rounds=rounds, seed=4, dtype="float64"), graph)
    run.run()
    return run


def test_two_rounds_equal_a_plain_loop(federation: Federation, plain) -> None:
    method = SFL(lr=0.1, batch_size=8, layers=2, lam_mean=0.2, lam_graph=0.7)
    graph = pairs(federation)
    adjacency = graph.adjacency.toarray() + np.eye(4)
    step = torch.from_numpy(adjacency / adjacency.sum(axis=1, keepdims=True))
    centre, u = plain.initial, plain.initial.expand(4, -1)
    for t in (1, 2):
        trained = []
        for k in range(4):
            w = centre.clone()
            for x, y in plain.batches(k, method, t):
                live = w.clone().requires_grad_()
                pull = 0.2 / 2 * (live - centre).square().sum() + 0.7 / 2 * (live - u[k]).square().sum()
                w = w - 0.1 * torch.autograd.grad(plain.loss(live, x, y) + pull, live)[0]
            trained.append(w)
        u = step @ (step @ torch.stack(trained))
        centre = u.mean(dim=0)
    done = finished(federation, method, graph)
    assert torch.allclose(done.state.rows, u, atol=1e-10)
    assert torch.allclose(done.state.arrays["centre"], centre, atol=1e-10)


def test_a_client_is_tested_on_its_own_model(federation: Federation, models: Callable[..., Tensor]) -> None:
    done = finished(federation, SFL(lr=0.1), pairs(federation))
    assert torch.equal(models(done, "pre"), done.state.rows)
    assert not torch.allclose(done.state.rows[0], done.state.rows[3])


@pytest.mark.parametrize("how", ["layers", "edges"])
def test_no_propagation_and_no_pull_is_unweighted_averaging(how: str, federation: Federation, plain) -> None:
    graph = empty(federation.names) if how == "edges" else pairs(federation)
    method = SFL(lr=0.1, batch_size=8, lam_mean=0, lam_graph=0, layers=0 if how == "layers" else 3)
    done = finished(federation, method, graph)
    w = plain.initial
    for t in (1, 2):
        rows = []
        for k in range(4):
            v = w.clone()
            for x, y in plain.batches(k, method, t):
                v = v - 0.1 * plain.gradient(v, x, y)
            rows.append(v)
        w = torch.stack(rows).mean(dim=0)
    assert torch.allclose(done.state.arrays["centre"], w, atol=1e-10)
    assert torch.allclose(done.state.rows, torch.stack(rows), atol=1e-10)


def test_a_complete_graph_is_fedprox(build: Callable[..., Federation]) -> None:
    federation = build((16, 16, 16, 16))
    ours = finished(federation, SFL(lr=0.1, lam_mean=0.3, lam_graph=0.2), complete(federation.names), 3)
    theirs = finished(federation, FedProx(lr=0.1, mu=0.5), None, 3)
    assert torch.allclose(ours.state.rows, theirs.state.rows, atol=1e-10)
    assert torch.allclose(ours.state.arrays["influence"], theirs.state.arrays["influence"])


def test_influence_follows_the_graph(federation: Federation) -> None:
    done = finished(federation, SFL(lr=0.1, layers=1), pairs(federation), rounds=1)
    influence = done.state.arrays["influence"]
    assert influence[0, 2] == 0
    assert influence[0, 1] > 0
    assert (influence[3, :3] == 0).all()
    later = finished(federation, SFL(lr=0.1, layers=1), pairs(federation), rounds=2).state.arrays["influence"]
    assert (later > 0).all(), "everyone starts the second round from the mean of all"


def test_propagation_by_hand() -> None:
    graph = ClientGraph([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    rows = torch.tensor([[0.0], [4.0], [9.0]], dtype=torch.float64)
    step = with_self_loops(graph.adjacency)
    assert Propagation(step, 1).apply(rows).ravel().tolist() == [2, 2, 9]
    assert torch.equal(Propagation(step, 0).apply(rows), rows)
    assert np.allclose(Propagation(step, 3).matrix(), np.linalg.matrix_power(step.toarray(), 3))
    assert np.allclose(Propagation(step, 3).matrix().sum(axis=1), 1)
    with pytest.raises(FedkinError, match="layers = -1"):
        Propagation(step, -1)


def test_learned_and_mixed_graphs(federation: Federation) -> None:
    given = finished(federation, SFL(lr=0.1), pairs(federation))
    for structure in ("learned", "mixed"):
        done = finished(federation, SFL(lr=0.1, structure=structure), pairs(federation))
        graph = done.state.arrays["learned_graphs"][-1]
        assert torch.equal(graph, graph.T)
        assert (graph >= 0).all()
        assert not torch.allclose(done.state.rows, given.state.rows)
    all_given = finished(federation, SFL(lr=0.1, structure="mixed", mix=0.0), pairs(federation))
    assert torch.allclose(all_given.state.rows, given.state.rows, atol=1e-12)
    learned = finished(federation, SFL(lr=0.1, structure="learned"), pairs(federation))
    all_learned = finished(federation, SFL(lr=0.1, structure="mixed", mix=1.0), pairs(federation))
    assert torch.allclose(all_learned.state.rows, learned.state.rows, atol=1e-12)


def test_labels_decide_who_is_joined_unless_told_otherwise() -> None:
    federation = fedkin.data.load("digits", clients=6, partition="labels:2", seed=0)
    result = fedkin.train(federation, "mlr", SFL(), rounds=1)
    holds = federation.label_counts() > 0
    shared = (holds[:, None] & holds[None, :]).any(axis=2)
    np.fill_diagonal(shared, False)
    assert np.array_equal(result.graph.adjacency.toarray() > 0, shared)
    with pytest.raises(FedkinError, match="SFL learned no client graph here"):
        result.learned_graph()


def test_too_many_edges_are_refused(federation: Federation) -> None:
    with pytest.raises(FedkinError, match="edges = 4 is not allowed: a client has at most 3 neighbours here"):
        fedkin.train(federation, "mlp:4", SFL(edges=4, structure="learned"))
