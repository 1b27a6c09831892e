"""dFedU: the iterates of FedU by letters between neighbours; nobody reads what is not meant for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin import ClientGraph, Federation, FedkinError, Result
from fedkin.algorithms import DFedU, FedU, Local
from fedkin.couplings import total_variation
from fedkin.graphs import complete
from fedkin.local.shard import Shard
from fedkin.local.tasks import TASKS, Request, client_task
from fedkin.run import Run, make_run
from fedkin.run.options import make_options

SIZES = (24, 9, 17, 1, 30, 12)


def make(sizes: tuple[int, ...] = SIZES, changed: int | None = None) -> Federation:
    rng = np.random.default_rng(0)
    clients = {}
    for k, n in enumerate(sizes):
        y = np.concatenate([np.arange(3), rng.integers(0, 3, n)])[:n]
        clients[f"site-{k}"] = (np.eye(3, 5)[y] * 2 + rng.normal(size=(n, 5)) + 3 * (k == changed), y)
    return Federation.from_arrays(clients, classes=[0, 1, 2], test_fraction=0.25)


@pytest.fixture
def federation() -> Federation:
    return make()


@pytest.fixture
def path(federation: Federation) -> ClientGraph:
    """site-0 – site-1 – … – site-5."""
    weights = np.diag([0.5, 1.0, 0.3, 2.0, 0.7], k=1)
    return ClientGraph(weights + weights.T, federation.names)


def train(federation: Federation, method: Any, graph: Any = None, **options: Any) -> Result:
    settings: dict[str, Any] = {"rounds": 4, "dtype": "float64", "model": "bn-mlp:4", **options}
    return fedkin.train(federation, settings.pop("model"), method, graph, **settings)


# --- the same iterates as FedU ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("changes", [{}, {"c": 0.5}, {"local_unit": "step", "batch_size": 8}, {"lr_decay": 0.5}])
def test_full_participation_is_fedu_iterate_by_iterate(
    federation: Federation, path: ClientGraph, rounds: int, changes: dict[str, Any]
) -> None:
    common = {"lr": 0.1, "eta": 0.6, **changes}
    with_server = train(federation, FedU(**common), path, rounds=rounds)
    without = train(federation, DFedU(**common), path, rounds=rounds)
    np.testing.assert_allclose(without.rows, with_server.rows, atol=1e-12)
    assert np.allclose(without.metrics["post"]["test_loss"], with_server.metrics["post"]["test_loss"], equal_nan=True)
    np.testing.assert_allclose(without.influence, with_server.influence, atol=1e-12)


def test_with_sleeping_clients_it_is_fedu_with_sampled_neighbours(federation: Federation, path: ClientGraph) -> None:
    with_server = train(federation, FedU(lr=0.1, eta=0.6), path, cohort=4)
    without = train(federation, DFedU(lr=0.1, eta=0.6), path, cohort=4)
    np.testing.assert_allclose(without.rows, with_server.rows, atol=1e-12)


def test_sparse_graphs_give_the_same_as_dense_ones(path: ClientGraph) -> None:
    sizes = tuple(4 + k % 5 for k in range(90))
    federation = make(sizes)
    ring = np.roll(np.eye(90), 1, axis=0)
    graph = ClientGraph(ring + ring.T, federation.names)
    rows = [train(federation, m(lr=0.1, eta=0.6), graph, model="mlr", rounds=2).rows for m in (FedU, DFedU)]
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-12)


def test_the_log_has_the_variation_of_what_was_sent(federation: Federation, path: ClientGraph) -> None:
    sent = train(federation, Local(lr=0.1, epochs=1), model="mlr", rounds=1).server_rows
    log = train(federation, DFedU(lr=0.1, epochs=1, eta=0.6), path, model="mlr", rounds=1).history[0]["log"]
    assert log["total_variation_trained"] == pytest.approx(total_variation(sent, path))
    assert log["stability"] == pytest.approx(0.1 * 0.6 * path.lambda_max())


# --- letters ----------------------------------------------------------------------------------------------------------


def test_messages_and_bytes_per_edge_and_per_round(federation: Federation, path: ClientGraph, tmp_path: Path) -> None:
    result = train(federation, DFedU(lr=0.1), path, rounds=3, out=tmp_path)
    row = result.rows.shape[1] * 8
    for record in result.history:
        assert (record["log"]["letters"], record["log"]["letter_bytes"]) == (10, 10 * row)
    table = result.letters()
    assert set(zip(table.source, table.target)) == {
        (f"site-{a}", f"site-{b}") for a in range(6) for b in range(6) if abs(a - b) == 1
    }
    assert (table.messages == 3).all()
    assert (table.bytes == 3 * row).all()
    assert result.facts["messages"] == 30
    assert result.facts["bytes"] == 30 * row == table.bytes.sum()
    again = fedkin.load(tmp_path).letters()
    assert again.equals(table)
    with pytest.raises(FedkinError, match="no client wrote to another"):
        train(federation, Local(), rounds=0).letters()


def test_sleeping_clients_neither_write_nor_read(federation: Federation, path: ClientGraph) -> None:
    result = train(federation, DFedU(lr=0.1), path, rounds=1, cohort=3)
    awake = {
        name
        for name, own in zip(result.names, np.diag(result.influence))
        if own > 0 and result.raw_influence is not None
    }
    moved = np.diag(result.raw_influence.numpy()) > 0
    awake = {name for name, there in zip(result.names, moved) if there}
    assert len(awake) == 3
    table = result.letters()
    assert all((row.messages == 1) == (row.source in awake and row.target in awake) for row in table.itertuples())


def test_traffic_survives_a_resume(federation: Federation, path: ClientGraph, tmp_path: Path) -> None:
    whole = train(federation, DFedU(lr=0.1), path, rounds=4)
    train(federation, DFedU(lr=0.1), path, rounds=2, out=tmp_path, checkpoint_every=1)
    resumed = fedkin.resume(tmp_path, federation, rounds=4)
    assert resumed.letters().equals(whole.letters())
    assert resumed.facts["bytes"] == whole.facts["bytes"]
    assert np.array_equal(resumed.rows, whole.rows)


# --- nobody obtains what is not meant for it --------------------------------------------------------------------------


def connected(federation: Federation, graph: ClientGraph) -> Run:
    """A run of dFedU after one round."""
    run = make_run(federation, "mlr", DFedU(lr=0.1), make_options(rounds=2, dtype="float64"), graph)
    run._one_round(run._cohort(1))
    return run


def test_a_change_at_one_client_spreads_one_edge_per_round(path: ClientGraph) -> None:
    """If a client could see a non-neighbour's model, site-5's other data would show in its row at once."""
    for rounds in (1, 2, 3):
        before = train(make(), DFedU(lr=0.1, eta=0.6), path, model="mlr", rounds=rounds).rows
        after = train(make(changed=5), DFedU(lr=0.1, eta=0.6), path, model="mlr", rounds=rounds).rows
        reached = [k for k in range(6) if not np.array_equal(before[k], after[k])]
        assert reached == list(range(5 - rounds, 6))


def test_an_attack_on_the_mail_gets_nothing_but_neighbours(federation: Federation, path: ClientGraph) -> None:
    """A task that hoards every tensor its mail holds, client by client, finds the neighbours' rows and no others."""
    run = connected(federation, path)
    rows = run.clients.snapshot()["private"].clone()
    hoard: dict[str, list[torch.Tensor]] = {}
    refused: list[tuple[str, str, str]] = []

    @client_task("hoard")
    def steal(shard: Shard, request: Request) -> dict[str, torch.Tensor]:
        mail = request.mail
        assert mail is not None
        if len(request.ids) > 1:
            raise RuntimeError("one by one, please")  # the engine then hands every client its own mail
        (me,) = mail.receivers
        hoard[me] = [letter for held in vars(mail).values() if torch.is_tensor(held) for letter in held]
        for other in federation.names:
            try:
                mail.letter(0, other)
            except FedkinError as problem:
                refused.append((me, other, str(problem)))
        return {"got": torch.zeros(1)}

    try:
        run.clients.exchange("private", "hoard", np.arange(6))
    finally:
        del TASKS["hoard"]
        run.clients.close()
    for name in federation.names:
        neighbours = {federation.index(other) for other in path.neighbours(name)}
        assert [torch.equal(letter, rows[j]) for letter, j in zip(hoard[name], sorted(neighbours))] == [True] * len(
            neighbours
        )
        assert len(hoard[name]) == len(neighbours)
    assert all(f"client '{me}' has no letter from '{other}'" in why for me, other, why in refused)
    strangers = {(a, b) for a in federation.names for b in federation.names if b not in path.neighbours(a)}
    assert {(me, other) for me, other, _ in refused} == strangers


def test_the_server_side_never_holds_a_model(federation: Federation, path: ClientGraph) -> None:
    run = connected(federation, path)
    initial = run.setting.spec.initial_row(run.setting.streams)
    assert all(torch.equal(row, initial) for row in run.state.rows)
    width = run.setting.spec.layout.width
    replies = run.algorithm.train(run.state, run.clients, np.arange(6), run.setting, commit=False)
    assert replies["rows"].shape == (6, 0)
    assert all(value.reshape(6, -1).shape[1] < width for value in replies.arrays.values())
    run.clients.close()


def test_edges_are_fixed_once(federation: Federation, path: ClientGraph) -> None:
    """No method can open a way between clients that the run's graph does not have."""
    run = connected(federation, path)
    with pytest.raises(FedkinError, match="already know their neighbours"):
        run.clients.link(complete(federation.names))
    with pytest.raises(FedkinError, match="unknown private state of the clients 'rows'"):
        run.clients.exchange("rows", "fedkin.algorithms.dfedu:dfedu", np.arange(6))
    run.clients.close()
    alone = make_run(federation, "mlr", Local(), make_options(rounds=1))
    with pytest.raises(FedkinError, match="the clients have no graph"):
        alone.clients.exchange("private", "fedkin.algorithms.dfedu:dfedu", np.arange(6))
    alone.clients.close()


# --- failures ---------------------------------------------------------------------------------------------------------


def test_divergence_names_the_client_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    sites = {f"site-{k}": (rng.normal(size=(16, 3)), rng.normal(size=16)) for k in range(4)}
    federation = Federation.from_arrays(sites)
    options: dict[str, Any] = {"model": "linear", "dtype": "float32", "checkpoint_every": 1, "out": tmp_path}
    with (
        pytest.warns(UserWarning, match="dfedu: .*stable bound"),
        pytest.raises(FedkinError, match=r"round \d+: .*'site-\d'.*last good checkpoint.*is kept"),
    ):
        train(federation, DFedU(lr=0.05, eta=1e6), complete(list(sites)), rounds=30, **options)


def test_a_client_that_fails_to_train_does_not_write(
    federation: Federation, path: ClientGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TASKS["train"]

    def failing(shard: Shard, request: Request) -> dict[str, torch.Tensor]:
        if "site-2" in [shard.names[k] for k in request.ids] and request.shared.get("commit", True):
            raise RuntimeError("out of battery")
        return plain(shard, request)

    monkeypatch.setitem(TASKS, "train", failing)
    result = train(federation, DFedU(lr=0.1, eta=0.6), path, model="mlr", rounds=1)
    assert "out of battery" in result.history[0]["log"]["failed"]["site-2"]
    table = result.letters()
    assert (table.messages == 0).equals((table.source == "site-2") | (table.target == "site-2"))
    start = train(federation, Local(), model="mlr", rounds=0).rows
    assert np.array_equal(result.rows[2], start[2])
