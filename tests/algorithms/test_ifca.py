from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.algorithms.fedavg import FedAvg
from fedkin.algorithms.ifca import IFCA
from fedkin.errors import FedkinError
from fedkin.models import ModelSpec
from fedkin.streams import Streams

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.fixture
def watched(watching: Any) -> Any:
    return watching(IFCA)


def loss(plain: Any, row: torch.Tensor, k: int) -> float:
    x, y = plain.federation.train[k]
    return float(plain.loss(row, torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y)))


def test_clients_choose_by_training_loss_and_models_are_means(
    federation: Any, run: Any, plain: Any, watched: Any
) -> None:
    run(federation, "mlp:4", watched(**SETTINGS, clusters=3), rounds=4, cohort=3)
    assert len(watched.seen) == 4
    for before, replies, after in watched.seen:
        models, new = before.arrays["models"], after.arrays["models"]
        members: dict[int, list[torch.Tensor]] = {}
        for k, choice, row in zip(replies.ids, replies["choice"].tolist(), replies["rows"]):
            assert choice == min(range(3), key=lambda j: loss(plain, models[j], k))
            members.setdefault(choice, []).append(row)
        for j in range(3):
            expected = torch.stack(members[j]).mean(dim=0) if j in members else models[j]
            assert torch.allclose(new[j], expected, atol=1e-12)
        assert after.log["cluster_sizes"] == [len(members.get(j, [])) for j in range(3)]
        assert set(replies.arrays) == {"loss", "moved", "rows", "choice"}


def test_initial_models_differ_and_the_first_is_everyones(federation: Any, run: Any) -> None:
    start = run(federation, "mlp:4", IFCA(clusters=3, restarts=2), rounds=0)
    models = start.state.arrays["models"]
    spec, streams = ModelSpec.of("mlp:4", federation.task, torch.float64), Streams(4)
    assert models.shape[:2] == (2, 3)
    assert len(torch.unique(models.view(6, -1), dim=0)) == 6
    assert torch.equal(models[0, 0], spec.initial_row(streams))


@pytest.mark.parametrize("model", ["mlp:4", "bn-mlp:4"])
def test_one_model_is_fedavg(federation: Any, build: Any, run: Any, model: str) -> None:
    sized = run(federation, model, IFCA(**SETTINGS, clusters=1, weights="size"), rounds=3, cohort=3)
    average = run(federation, model, FedAvg(**SETTINGS), rounds=3, cohort=3)
    assert torch.allclose(sized.state.rows, average.state.rows, atol=1e-12)
    assert torch.allclose(sized.state.arrays["influence"], average.state.arrays["influence"], atol=1e-12)
    assert sized.clients.traffic.down == average.clients.traffic.down
    even = build((12, 12, 12, 12))
    equal = run(even, model, IFCA(**SETTINGS, clusters=1), rounds=3, cohort=3)
    assert torch.allclose(
        equal.state.rows, run(even, model, FedAvg(**SETTINGS), rounds=3, cohort=3).state.rows, atol=1e-12
    )
    uneven = run(federation, model, IFCA(**SETTINGS, clusters=1), rounds=3, cohort=3)
    assert not torch.allclose(uneven.state.rows, average.state.rows, atol=1e-6)


@pytest.mark.parametrize("weights", ["equal", "size"])
def test_gradients_are_averaged_over_all_who_took_part(federation: Any, run: Any, plain: Any, weights: Any) -> None:
    """With batches of all samples: θ_j − γ Σ_{k in j} n_k ∇f_k(θ_j) / Σ_S n, by autograd; n = 1 for equal weights."""
    how = {"lr": 0.3, "batch_size": 100, "clusters": 2, "average": "gradient", "epochs": 7, "momentum": 0.5}
    method = IFCA(**how, weights=weights)
    counts = plain.sizes if weights == "size" else plain.sizes * 0 + 1
    start = run(federation, "mlp:4", method, rounds=0).state.arrays["models"][0]
    done = run(federation, "mlp:4", method, rounds=1)
    chosen = [min(range(2), key=lambda j: loss(plain, start[j], k)) for k in range(4)]
    for j in range(2):
        slopes = []
        for k in range(4):
            if chosen[k] == j:
                x, y = federation.train[k]
                slope = plain.gradient(start[j], torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y))
                slopes.append(counts[k] * slope)
        expected = start[j] - 0.3 * sum(slopes) / counts.sum() if slopes else start[j]
        assert torch.allclose(done.state.arrays["models"][0, j], expected, atol=1e-12)


def test_a_round_sends_p_models_and_gets_one_back(federation: Any, run: Any) -> None:
    sent = {p: run(federation, "mlp:4", IFCA(**SETTINGS, clusters=p), rounds=2, cohort=3) for p in (1, 3)}
    assert sent[3].clients.traffic.down == 3 * sent[1].clients.traffic.down
    assert sent[3].clients.traffic.up == sent[1].clients.traffic.up


def test_pre_is_the_model_a_client_would_choose(federation: Any, run: Any, plain: Any, models: Any) -> None:
    """Also for clients that never took part."""
    done = run(federation, "mlp:4", IFCA(**SETTINGS, clusters=3), rounds=2, cohort=1)
    offered = done.state.arrays["models"][0]
    for k, row in enumerate(models(done, "pre")):
        best = min(range(3), key=lambda j: loss(plain, offered[j], k))
        assert torch.equal(row, offered[best])


def test_restarts_keep_the_set_with_the_smallest_loss(federation: Any, run: Any, watched: Any) -> None:
    method = watched(**SETTINGS, clusters=2, restarts=4, trial_rounds=2)
    done = run(federation, "mlp:4", method, rounds=4)
    logs = [record["log"] for record in done.history]
    assert [len(log.get("trial_loss", [])) for log in logs] == [4, 4, 0, 0]
    assert len(watched.seen) == 4 + 4 + 1 + 1
    best = int(np.argmin(logs[1]["trial_loss"]))
    kept = watched.seen[4 + best][2]
    assert logs[1]["train_loss"] == min(logs[1]["trial_loss"])
    assert torch.equal(watched.seen[8][0].arrays["models"], kept.arrays["models"])
    assert done.state.arrays["models"].shape[0] == 1
    # the kept set was trained as if it had been alone, from its own initial weights
    losses = [watched.seen[i][1]["loss"].double().mean() for i in range(4, 8)]
    assert logs[1]["trial_loss"] == pytest.approx([float(value) for value in losses])


def test_resumes_in_the_middle_of_a_trial(federation: Any, tmp_path: Any) -> None:
    method = IFCA(**SETTINGS, clusters=2, restarts=3, trial_rounds=3)
    options = {"cohort": 3, "checkpoint_every": 1, "seed": 3}
    whole = fedkin.train(federation, "mlp:4", method, rounds=5, out=tmp_path / "whole", **options)
    fedkin.train(federation, "mlp:4", method, rounds=2, out=tmp_path / "part", **options)
    resumed = fedkin.resume(tmp_path / "part", federation, rounds=5)
    assert np.array_equal(whole.rows, resumed.rows)
    assert np.array_equal(whole.influence, resumed.influence)  # type: ignore[arg-type]


def test_influence_is_that_of_the_model_held(federation: Any, run: Any, watched: Any) -> None:
    """Followed by hand on the models: J_j ← J_j + mean of the members' moves."""
    done = run(federation, "mlp:4", watched(**SETTINGS, clusters=2), rounds=5, cohort=3)
    shaped, choice = np.zeros((2, 4)), np.full(4, -1)
    for _, replies, _ in watched.seen:
        for j in range(2):
            mine = replies.ids[replies["choice"].numpy() == j]
            for k in mine:
                shaped[j, k] += float(replies["moved"][replies.ids.tolist().index(k)]) / len(mine)
        choice[replies.ids] = replies["choice"].numpy()
    assert np.allclose(done.state.arrays["shaped"][0], shaped)
    for k in np.flatnonzero(choice >= 0):
        assert np.allclose(done.state.arrays["influence"][k], shaped[choice[k]])


def test_opposite_labels_are_told_apart() -> None:
    """Two groups with swapped labels: one model cannot serve both, two models find them."""
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(6):
        x = rng.normal(size=(60, 4))
        clients[f"c{k}"] = (x, ((x[:, 0] > 0) ^ (k % 2 == 0)).astype(int))
    federation = fedkin.Federation.from_arrays(clients, truth={"cluster": np.arange(6) % 2})
    result = fedkin.train(federation, "mlr", IFCA(clusters=2, restarts=3, lr=0.5), rounds=15, seed=0)
    assert result.history[-1]["log"]["rand_index"] == 1
    assert result.summary("pre")["mean"] > 0.9
    one = fedkin.train(federation, "mlr", IFCA(clusters=1, lr=0.5), rounds=15, seed=0)
    assert one.summary("pre")["mean"] < 0.7


def test_bad_input() -> None:
    with pytest.raises(FedkinError, match="clusters = 0 is not allowed"):
        IFCA(clusters=0)
    with pytest.raises(FedkinError, match="average = 'models' is not allowed"):
        IFCA(average="models")
