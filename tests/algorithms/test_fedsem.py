from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import fedkin
from fedkin.algorithms.fedsem import FedSem
from fedkin.errors import FedkinError

SETTINGS = {"lr": 0.1, "batch_size": 6}


@pytest.fixture
def watched(watching: Any) -> Any:
    return watching(FedSem)


@pytest.mark.parametrize("model", ["mlp:4", "bn-mlp:4"])
def test_clients_join_the_nearest_centre(build: Any, run: Any, watched: Any, model: str) -> None:
    done = run(build((14, 11, 18, 9, 12, 10, 16)), model, watched(**SETTINGS, clusters=3), rounds=5, cohort=4)
    n = done.setting.spec.layout.n_parameters
    home: dict[int, int] = {}
    for before, replies, after in watched.seen[1:]:
        old, new = before.arrays["centres"].clone(), after.arrays["centres"]
        members: dict[int, list[torch.Tensor]] = {}
        for k, row in zip(replies.ids, replies["rows"]):
            j = min(range(3), key=lambda j: float((row[:n] - old[j, :n]).norm()))
            assert after.arrays["cluster"][k] == j
            home[int(k)] = j
            members.setdefault(j, []).append(row)
        for j in range(3):
            expected = torch.stack(members[j]).mean(dim=0) if j in members else old[j]
            assert torch.allclose(new[j], expected, atol=1e-12)
        for k, j in home.items():
            assert torch.allclose(after.rows[k], new[j], atol=1e-12)
        assert after.log["cluster_sizes"] == [len(members.get(j, [])) for j in range(3)]


def test_the_first_centres_start_from_models_of_the_first_round(build: Any, run: Any, watched: Any) -> None:
    """With as many centres as clients each centre is one client's model."""
    run(build((14, 11, 18)), "mlp:4", watched(**SETTINGS, clusters=3), rounds=1)
    _, replies, after = watched.seen[0]
    assert torch.equal(after.rows, replies["rows"])
    assert sorted(after.arrays["cluster"].tolist()) == [0, 1, 2]


def test_one_centre_is_fedavg_with_equal_weights(build: Any, run: Any) -> None:
    data = build((12, 12, 12, 12))
    from fedkin.algorithms.fedavg import FedAvg

    one = run(data, "bn-mlp:4", FedSem(**SETTINGS, clusters=1), rounds=3, cohort=3)
    assert torch.allclose(
        one.state.rows, run(data, "bn-mlp:4", FedAvg(**SETTINGS), rounds=3, cohort=3).state.rows, atol=1e-12
    )


def test_who_never_took_part_gets_the_mean_of_the_round(build: Any, run: Any, watched: Any) -> None:
    run(build((14, 11, 18, 9, 12, 10)), "mlp:4", watched(**SETTINGS, clusters=2), rounds=1, cohort=3)
    _, replies, after = watched.seen[0]
    idle = np.setdiff1d(np.arange(6), replies.ids)
    assert (after.arrays["cluster"][idle] == -1).all()
    assert torch.allclose(after.rows[idle], after.arrays["centres"].mean(dim=0).expand(3, -1))


def test_groups_without_a_common_label_are_found() -> None:
    federation = fedkin.data.load("digits", clients=8, partition="topology:0,1|8,9", seed=0)
    result = fedkin.train(federation, "mlp", FedSem(clusters=2, epochs=3, batch_size=8), rounds=4, seed=0)
    assert result.history[-1]["log"]["rand_index"] == 1
    assert result.influence is not None
    assert result.influence[:4, 4:].max() < 0.05  # what they share comes from the first round at most


def test_fewer_clients_than_centres_is_said_once(build: Any, run: Any) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        done = run(build((14, 11, 18, 9)), "mlp:4", FedSem(**SETTINGS), rounds=3, cohort=2)
    messages = [str(w.message) for w in said if "fedsem" in str(w.message)]
    assert len(messages) == 1
    assert "clusters = 4, more than the active clients (2) in the first round" in messages[0]
    assert len(done.state.arrays["centres"]) == 2
    with pytest.raises(FedkinError, match="clusters = 0 is not allowed"):
        FedSem(clusters=0)
