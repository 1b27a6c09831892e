"""One suite over every method: what a user may expect of any of them. The checks are those of `fedkin.testing`.

How a method is run where its defaults do not fit a toy federation stands in expect_<name>.py.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.result import Result
from fedkin.testing import ALGORITHM_PROMISES, Expected, Trial, parameter_changes_the_result
from fedkin.testing import uneven_federation as make_federation

METHODS = algorithms.names()
FACTS = {
    "PARAMETERS": "parameters",
    "MODEL": "model",
    "OTHER": "other",
    "WITH": "together_with",
    "SILENT": "silent",
    "TOGETHER": "one_process",
}


def _expected(name: str) -> Expected:
    path = Path(__file__).with_name(f"expect_{name}.py")
    if not path.exists():
        return Expected()
    spec = importlib.util.spec_from_file_location(f"contract_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    facts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(facts)
    return Expected(**{ours: getattr(facts, fact) for fact, ours in FACTS.items() if hasattr(facts, fact)})


TRIALS = {name: Trial(algorithms.get(name), _expected(name)) for name in METHODS}
MODEL = {name: trial.expected.model for name, trial in TRIALS.items() if trial.expected.model}
TOGETHER = {name: trial.expected.one_process for name, trial in TRIALS.items() if trial.expected.one_process}


def make(name: str, **changes: Any) -> Algorithm:
    return TRIALS[name].make(**changes)


def run(name: str, federation: Federation, algorithm: Algorithm | None = None, **options: Any) -> Result:
    return TRIALS[name].run(federation, algorithm, **options)


def test_every_expectation_belongs_to_a_method() -> None:
    told = {path.stem.removeprefix("expect_") for path in Path(__file__).parent.glob("expect_*.py")}
    assert told <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_is_found_by_its_name(name: str) -> None:
    assert algorithms.get(name).name == name


@pytest.mark.parametrize("promise", ALGORITHM_PROMISES)
@pytest.mark.parametrize("name", METHODS)
def test_keeps_its_promises(name: str, promise: str) -> None:
    ALGORITHM_PROMISES[promise](TRIALS[name])


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in METHODS for field in TRIALS[name].method.model_fields]
)
def test_every_parameter_changes_the_result(name: str, field: str) -> None:
    parameter_changes_the_result(TRIALS[name], field)


LEARNING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "focal, AdamW": (
        {"loss": "focal:1", "class_weight": [1.0, 2.0, 1.0], "metrics": ["auroc", "f1"]},
        {"optimiser": "adamw", "moments": "keep", "clip": 1.0, "weight_decay": 0.01},
    ),
    "smoothed, RMSprop": (
        {"label_smoothing": 0.1, "metrics": ["balanced-accuracy", "ece"], "headline": "ece"},
        {"optimiser": "rmsprop", "lr_schedule": "warm-up:2"},
    ),
}
# SCAFFOLD's control variates are those of SGD.
OWN_STEPS: dict[str, dict[str, Any]] = {"scaffold": {"optimiser": "sgd"}}


@pytest.mark.parametrize("what", LEARNING)
@pytest.mark.parametrize("name", METHODS)
def test_any_loss_metric_and_optimiser_however_clients_are_sharded(name: str, what: str) -> None:
    federation = make_federation()
    asked, how = LEARNING[what]
    steps = {**how, "lr": 0.01, **TRIALS[name].expected.together_with.get("optimiser", {}), **OWN_STEPS.get(name, {})}
    together = run(name, federation, make(name, **steps), **asked)
    key = f"test_{asked.get('headline', asked['metrics'][0]).replace('-', '_')}"
    assert together.metric == key
    assert np.isfinite(together.rows).all()
    assert np.isfinite(together.summary("deployed")["mean"])
    if name in TOGETHER:
        return
    apart = run(name, federation, make(name, **steps), engine="fedkin.testing.scattered:Scattered", **asked)
    assert np.allclose(apart.rows, together.rows, atol=1e-8)
    mine, theirs = (np.array(each.metrics["post"][key], dtype=float) for each in (apart, together))
    assert np.allclose(mine, theirs, atol=1e-6, equal_nan=True)


def squared_logits(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Somebody's own loss: squared distance of the logits to the one-hot label."""
    return (outputs - torch.nn.functional.one_hot(targets, outputs.shape[1])).square().mean(dim=1)


OPTIMISERS = ["sgd", "adam", "adamw", "rmsprop"]
JUDGED = ["accuracy", "balanced-accuracy", "f1", "auroc", "auprc", "brier", "log-loss", "ece"]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cross-entropy", "focal:2", squared_logits])
@pytest.mark.parametrize("name", METHODS)
def test_every_loss_with_every_optimiser_and_metric(name: str, loss: Any) -> None:
    for optimiser in OPTIMISERS if name not in OWN_STEPS else ["sgd"]:
        steps = {"lr": 0.01, **TRIALS[name].expected.together_with.get("optimiser", {}), "optimiser": optimiser}
        result = run(name, make_federation(), make(name, **steps), loss=loss, metrics=JUDGED, headline="auprc")
        assert result.metric == "test_auprc"
        assert np.isfinite(result.rows).all()
        for metric in JUDGED:
            values = np.array(result.metrics["post"][f"test_{metric.replace('-', '_')}"], dtype=float)
            assert np.isfinite(values).any(), metric
            if metric != "log-loss":
                assert np.all((values >= 0) & (values <= (2 if metric == "brier" else 1)) | np.isnan(values)), metric


TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "columns of labels": ("multilabel", {"metrics": ["f1"]}),
    "counts": ("counts", {"metrics": ["mae"]}),
    "several numbers": ("regression", {"loss": "huber:1", "metrics": ["r2"]}),
}
NEED_CLASSES = {"fedproto": "a prototype for each class", "knnper": "vote on classes"}
OTHER_GROUND: dict[str, dict[str, Any]] = {
    "sfl": {"graph": "complete"},
    "oracle": {"clusters": {f"client {k}": k % 2 for k in range(6)}},
}
"""Where the toy federation's own graph or clusters come from its classes."""


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] if what != "columns of labels" else []) for what in TARGETS]
)
def test_other_targets_than_classes(name: str, what: str) -> None:
    rng, clients, (kind, asked) = np.random.default_rng(0), {}, TARGETS[what]
    for k in range(6):
        x = rng.normal(size=(20 + 3 * k, 5))
        y = {
            "multilabel": (x[:, :3] > 0).astype(int),
            "counts": rng.poisson(np.exp(x[:, 0])),
            "regression": 2 * x[:, :2],
        }
        clients[f"client {k}"] = (x, y[kind])
    federation = Federation.from_arrays(clients, task=kind)  # type: ignore[arg-type]
    ground = OTHER_GROUND.get(name, {})
    parameters = {key: value for key, value in ground.items() if key != "graph"}
    options = {key: value for key, value in ground.items() if key == "graph"}
    if name in NEED_CLASSES:
        with pytest.raises(FedkinError, match=NEED_CLASSES[name]):
            run(name, federation, make(name), **asked)
        return
    result = run(name, federation, make(name, **parameters), **asked, **options)
    assert np.isfinite(result.rows).all()
    assert np.isfinite(result.summary("deployed")["mean"])
