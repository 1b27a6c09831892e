from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from fedkin.graphs import ClientGraph, similarity
from fedkin.reports.payload import MOST_EDGES, block_mean, graph_data, page_data, thin
from fedkin.reports.spectral import energy, response
from fedkin.reports.units import Units
from fedkin.result.contenders import group


def test_curves_are_means_over_clients_with_the_range_of_seeds(runs):
    data = page_data(group(runs))
    curve = data["methods"][1]["curves"]["test_accuracy"]["pre"]
    tables = [run.history.curve("test_accuracy", "pre")[1].mean(axis=1) for run in runs[2:4]]
    assert curve["round"] == [1, 2, 3]
    assert np.allclose(curve["mean"], np.mean(tables, axis=0), rtol=1e-3)
    assert np.allclose(curve["seeds"], [np.min(tables, axis=0), np.max(tables, axis=0)], rtol=1e-3)


def test_influence_comes_back_from_its_bytes(runs):
    data = page_data(group(runs))["methods"][2]["influence"]
    values = np.frombuffer(base64.b64decode(data["given"]), np.uint8).reshape(8, 8)
    assert np.allclose((values / 255) ** 2 * data["max"], runs[4].influence, atol=data["max"] / 100)


def test_total_variation_and_response_of_fedpnp(runs):
    method = page_data(group(runs))["methods"][2]
    assert method["variation"]["round"] == [1, 2, 3]
    name, lambdas, h = response(runs[4])
    nu = runs[4].history[-1]["log"]["strength"]
    assert name == "soft"
    assert np.allclose(h, 1 / (1 + nu * lambdas + nu * lambdas**2))
    assert response(runs[0]) is None


def test_response_of_a_laplacian_step_is_one_minus_step_times_lambda(runs):
    records = [{**record, "log": {"step": 0.1}} for record in runs[4].history]
    run = replace(runs[4], history=type(runs[4].history)(runs[4].names, records))
    _, lambdas, h = response(run)
    assert np.allclose(h, 1 - 0.1 * lambdas)


def test_equal_models_have_all_their_energy_at_frequency_zero(runs):
    same = replace(runs[4], server_rows=runs[4].server_rows[:1].expand(8, -1))
    assert np.allclose(energy(same), np.eye(8)[0], atol=1e-10)
    assert np.isclose(energy(runs[4]).sum(), 1)


def test_many_edges_are_cut_to_the_strongest():
    rng = np.random.default_rng(0)
    dense = np.triu(rng.uniform(size=(300, 300)), 1)
    data = graph_data(ClientGraph(dense + dense.T))
    assert 300 <= len(data["from"]) <= MOST_EDGES
    assert data["edges"] == 300 * 299 // 2
    assert np.mean(data["weight"]) > 0.8


def test_block_mean():
    matrix = np.arange(16.0).reshape(4, 4)
    assert np.allclose(block_mean(matrix, np.arange(4), 2), [[2.5, 4.5], [10.5, 12.5]])
    assert np.allclose(block_mean(matrix, np.arange(3, -1, -1), 9), matrix[::-1, ::-1])


def test_long_histories_are_thinned_and_keep_the_last_round():
    kept = thin(list(range(1, 5001)))
    assert len(kept) <= 300
    assert kept[-1] == 5000


def test_above_two_thousand_clients_groups_are_shown(runs):
    clients = 2_400
    rng = np.random.default_rng(0)
    centre = rng.integers(0, 3, clients)
    graph = similarity.knn(rng.normal(size=(clients, 3)) + 20 * centre[:, None], 5)
    values = rng.uniform(size=clients)
    result = replace(
        runs[4], names=graph.names, graph=graph, sizes=np.ones(clients, int), raw_influence=None,
        label_counts=np.eye(10, dtype=int)[centre], choice=("trained",) * clients,
        metrics={when: {"test_accuracy": values.tolist()} for when in ("pre", "post", "deployed")},
        history=type(runs[4].history)(graph.names), facts={**runs[4].facts, "test_sizes": np.ones(clients)},
    )  # fmt: skip
    units = Units.of_result(result)
    assert units.grouped
    assert 12 <= len(units.names) <= 60
    assert units.members.sum() == clients
    assert np.isclose((units.mean(values) * units.members).sum(), values.sum())
    assert np.isclose(units.graph(graph).adjacency.sum() <= graph.adjacency.sum(), True)
    purity = units.total(np.eye(3)[centre]).max(axis=1).sum() / clients
    assert purity > 0.95  # groups do not cut across far-away clusters
    data = page_data(group([result]))
    assert len(json.dumps(data)) < 100_000
    assert data["units"]["names"][0].startswith("group 1 (")


def test_groups_carry_the_weight_between_them():
    adjacency = sp.csr_array(np.array([[0, 1, 2, 0], [1, 0, 0, 3], [2, 0, 0, 1], [0, 3, 1, 0.0]]))
    units = Units(("one", "two"), np.array([0, 0, 1, 1]), np.arange(2), "test")
    assert np.allclose(units.graph(ClientGraph(adjacency)).adjacency.toarray(), [[0, 5], [5, 0]])
