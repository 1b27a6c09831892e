"""What a run says about itself in result.notes."""

from __future__ import annotations

import numpy as np

import fedkin
from fedkin import Federation, algorithms
from fedkin.reports.headline import verdict_on
from fedkin.result.contenders import group
from fedkin.run.callbacks import EarlyStop
from fedkin.testing.federations import uneven_federation


def rare(share: float = 0.05, sites: int = 4, n: int = 200) -> Federation:
    """Sites with few positives that inputs do not give away."""
    rng = np.random.default_rng(0)
    clients = {}
    for k in range(sites):
        y = np.zeros(n, dtype=int)
        y[: int(share * n)] = 1
        clients[f"s{k}"] = (rng.normal(size=(n, 3)), rng.permutation(y))
    return Federation.from_arrays(clients)


def test_early_stopping_without_validation_samples_is_noted() -> None:
    told = fedkin.train(uneven_federation(), "mlr", rounds=2, callbacks=[EarlyStop()]).notes
    assert any("no validation samples" in note for note in told)
    assert not fedkin.train(uneven_federation(), "mlr", rounds=2).notes


def test_a_loss_that_does_not_fall_is_noted() -> None:
    stuck = fedkin.train(uneven_federation(), "mlr", algorithms.FedAvg(lr=1e-30), rounds=6)
    assert any("the training loss did not fall" in note for note in stuck.notes)
    fine = fedkin.train(uneven_federation(), "mlr", algorithms.FedAvg(lr=0.1), rounds=6)
    assert not any("did not fall" in note for note in fine.notes)


def test_models_of_one_class_are_noted_and_not_judged() -> None:
    methods = [algorithms.make(name, {"lr": 0.3}) for name in ("fedavg", "local")]
    runs = [fedkin.train(rare(), "mlr", method, rounds=20, headline="accuracy") for method in methods]
    for run in runs:
        assert run.facts["single_class"] == ["s0", "s1", "s2", "s3"]
        assert any("all models predict one class only" in note for note in run.notes)
    said = verdict_on(group(runs))
    assert said.title == "These models cannot be judged: they predict one class only"
    assert said.verdict == "unknown"
    judged = [fedkin.train(rare(), "mlr", method, rounds=20, headline="auroc") for method in methods]
    assert "cannot be judged" not in verdict_on(group(judged)).title


def test_numbers_far_from_one_are_noted() -> None:
    rng = np.random.default_rng(0)

    def sites(by: float, plus: float, inputs: float = 1.0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        return {f"s{k}": (inputs * (x := rng.normal(size=(40, 3))), plus + by * x[:, 0] / inputs) for k in range(3)}

    def told(**how: float) -> tuple[str, ...]:
        return fedkin.train(Federation.from_arrays(sites(**how)), "linear", algorithms.FedAvg(lr=1e-12), rounds=1).notes

    (note,) = told(by=50, plus=1000)
    assert note.startswith("targets have mean ")
    assert "from_frame does" in note
    (note,) = told(by=1, plus=0, inputs=5000)
    assert note.startswith("inputs reach ")
    assert told(by=2, plus=3) == ()
    counts = {name: (x, rng.poisson(100, len(x))) for name, (x, _) in sites(1, 0).items()}
    slowly = algorithms.FedAvg(lr=1e-12)
    assert fedkin.train(Federation.from_arrays(counts, task="counts"), "linear", slowly, rounds=1).notes == ()
