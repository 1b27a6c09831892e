"""One rate for all, though a client's inputs allow less: it halves the rate until training is stable, the others train on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedkin import Federation, algorithms, train
from fedkin.run import make_run
from fedkin.run.options import make_options

RATE, STEPS = 0.05, 40


def two_clients() -> Federation:
    """The calm one's mean squared error has smoothness 2; of the other, whose inputs are alike and large, about 2·280."""
    rng = np.random.default_rng(0)
    calm = rng.normal(size=(64, 10))
    steep = 5 + np.repeat(rng.normal(size=(64, 1)), 10, axis=1) + 0.1 * rng.normal(size=(64, 10))
    clients = {"calm": (calm, calm[:, 0]), "steep": (steep, (steep[:, 0] - 5) / 2)}
    return Federation.from_arrays(clients, test_fraction=0.25)


def finished(name: str, federation: Federation, rounds: int = 3, **parameters: Any) -> Any:
    method = algorithms.make(name, {"lr": RATE, "steps": STEPS, "batch_size": 100, **parameters})
    run = make_run(federation, "linear", method, make_options(rounds=rounds, seed=0, dtype="float64"), None)
    run.run()
    return run


def smoothness(federation: Federation, client: int) -> float:
    """β of the mean squared error of a linear model with a bias: 2λ_max([X 1]ᵀ[X 1]/n)."""
    x = np.asarray(federation.train[client][0], dtype=float)
    design = np.column_stack([x, np.ones(len(x))])
    return 2 * float(np.linalg.eigvalsh(design.T @ design / len(x)).max())


def test_the_rate_is_halved_until_gradient_descent_is_stable_and_no_further() -> None:
    federation = two_clients()
    run = finished("local", federation)
    halved = run.clients.snapshot()["halvings"].tolist()
    assert halved[0] == 0
    assert RATE * 0.5 ** halved[1] < 2 / smoothness(federation, 1) < RATE * 0.5 ** (halved[1] - 1)


def test_the_client_learns_and_the_other_is_untouched() -> None:
    federation = two_clients()
    wild, steady = (finished("local", federation, halvings=halvings) for halvings in (0, 6))
    before, after = (run.final["post"] for run in (wild, steady))
    assert torch.equal(before["model"][0], after["model"][0])
    assert after["test_loss"][1] < 1
    assert len(before["test_loss"]) == 1, "without it, the client is set aside"


def test_the_user_is_told_who_trained_at_a_lower_rate() -> None:
    method = algorithms.make("local", {"lr": RATE, "steps": STEPS, "batch_size": 100})
    run = make_run(two_clients(), "linear", method, make_options(rounds=3, seed=0, dtype="float64"), None)
    result, names = run.run(), run.setting.names
    times = int(run.clients.snapshot()["halvings"][1])
    assert [note for note in result.notes if "lower rate" in note] == [
        f"1 of 2 clients trained at a lower rate, down to 1/{2**times} of the one given, at which their training grew "
        f"without bound (first {names[1]!r} in round 1); a lower lr would suit all"
    ]
    alone = make_run(two_clients().take(np.array([0])), "linear", method, make_options(rounds=3, dtype="float64"), None)
    assert not any("lower rate" in note for note in alone.run().notes)


def test_a_client_alone_ends_where_it_does_among_others() -> None:
    federation = two_clients()
    alone = finished("local", federation.take(np.array([1]))).final["post"]["model"]
    assert torch.allclose(alone[0], finished("local", federation).final["post"]["model"][1], atol=1e-12)


@pytest.mark.parametrize("name", ["ditto", "apfl", "pfedme", "fedrep", "scaffold"])
def test_personal_models_and_private_state_are_those_of_the_last_attempt(name: str) -> None:
    parameters = {"personal_lr": RATE} if name == "pfedme" else {}
    run = finished(name, two_clients(), rounds=6, **parameters)
    assert torch.isfinite(run.final["post"]["test_loss"]).all()
    assert (run.final["post"]["test_loss"] < 5).all()
    assert all(torch.isfinite(value.double()).all() for value in run.clients.snapshot().values())


def test_training_that_is_not_wild_leaves_no_trace() -> None:
    federation = two_clients().take(np.array([0]))
    runs = [finished("fedavg", federation, halvings=halvings) for halvings in (0, 6)]
    assert "halvings" not in runs[1].clients.snapshot()
    assert torch.equal(*(run.state.rows for run in runs))


def test_a_resumed_run_repeats_the_numbers(tmp_path: Any) -> None:
    import fedkin

    federation, method = two_clients(), algorithms.make("ditto", {"lr": RATE, "steps": STEPS})
    whole = train(federation, "linear", method, rounds=4, seed=0)
    train(federation, "linear", method, rounds=2, seed=0, out=tmp_path / "run", checkpoint_every=1)
    rest = fedkin.resume(tmp_path / "run", federation, rounds=4)
    assert whole.metrics["deployed"]["test_loss"] == rest.metrics["deployed"]["test_loss"]
