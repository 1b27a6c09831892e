from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import torch

from fedkin.algorithms.cfl import CFL, bipartition
from fedkin.algorithms.fedavg import FedAvg

SETTINGS = {"lr": 0.1, "batch_size": 6}


def cosines(moved: torch.Tensor) -> np.ndarray:
    m = len(moved)
    return np.array([[float(torch.dot(a, b) / a.norm() / b.norm()) for b in moved] for a in moved]).reshape(m, m)


def best_by_trying_all(moved: torch.Tensor) -> tuple[float, tuple[int, ...]]:
    similar, found = cosines(moved), []
    for rest in product((0, 1), repeat=len(moved) - 1):
        codes = np.array((0, *rest))
        if any(rest):
            found.append((float(similar[codes == 0][:, codes == 1].max()), tuple(codes.tolist())))
    return min(found)


def test_the_bipartition_is_the_best_of_all() -> None:
    for seed in range(20):
        moved = torch.randn((7, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        value, codes = best_by_trying_all(moved)
        assert tuple(bipartition(moved).tolist()) == codes, value


def test_clients_that_never_settle_are_fedavg(federation: Any, run: Any) -> None:
    ours = run(federation, "bn-mlp:4", CFL(**SETTINGS, epsilon1=0, after=0), cohort=3, rounds=3)
    theirs = run(federation, "bn-mlp:4", FedAvg(**SETTINGS), cohort=3, rounds=3)
    assert torch.allclose(ours.state.rows, theirs.state.rows, atol=1e-12)


def test_three_rounds_of_the_plain_loop(federation: Any, plain: Any, run: Any) -> None:
    """Split as soon as possible: everybody settles (ε₁ large), everybody pulls (ε₂ = 0)."""
    method = CFL(**SETTINGS, epsilon1=1e9, epsilon2=0, after=1)
    done = run(federation, "mlp:4", method, rounds=3)
    clusters, rows = [[0, 1, 2, 3]], [plain.initial] * 4
    for t in (1, 2, 3):
        trained = []
        for k in range(4):
            w = rows[k]
            for x, y in plain.batches(k, method, t):
                w = w - 0.1 * plain.gradient(w, x, y)
            trained.append(w)
        moved = torch.stack(trained) - torch.stack(rows)
        parted = []
        for members in clusters:
            centre = sum(plain.sizes[k] * trained[k] for k in members) / plain.sizes[members].sum()
            for k in members:
                rows[k] = centre
            if t > 1 and len(members) > 2:
                codes = np.array(best_by_trying_all(moved[members])[1])
                parted += [np.array(members)[codes == c].tolist() for c in (0, 1)]
            else:
                parted.append(members)
        clusters = parted
    assert torch.allclose(done.state.rows, torch.stack(rows), atol=1e-12)
    label = done.state.arrays["cluster"].numpy()
    assert {tuple(np.flatnonzero(label == c)) for c in set(label)} == {tuple(members) for members in clusters}
    assert len(clusters) > 1


def test_two_kinds_of_clients_are_told_apart(run: Any) -> None:
    from fedkin.federation import Federation

    rng, told = np.random.default_rng(0), {}
    for k in range(8):
        x = rng.normal(size=(60, 4))
        told[f"c{k}"] = (x, (x[:, 0] > 0).astype(int) if k % 2 else (x[:, 0] < 0).astype(int))
    federation = Federation.from_arrays(told, truth={"cluster": np.arange(8) % 2})
    done = run(federation, "mlr", CFL(lr=0.5, epsilon1=0.2, epsilon2=0.3, after=2), rounds=8)
    assert done.state.log["rand_index"] == 1.0
    assert sorted(done.state.log["cluster_sizes"]) == [4, 4]


def test_a_cluster_waits_for_all_its_clients(federation: Any, run: Any) -> None:
    done = run(federation, "mlp:4", CFL(**SETTINGS, epsilon1=1e9, epsilon2=0, after=0), cohort=3, rounds=3)
    assert done.state.arrays["cluster"].tolist() == [0, 0, 0, 0]
