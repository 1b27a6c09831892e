"""check_algorithm: what a user may expect of any method."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

import fedkin
from fedkin.algorithm import Algorithm
from fedkin.federation import Federation
from fedkin.result import Result
from fedkin.testing.federations import uneven_federation
from fedkin.testing.promises import Promise, need, numpys_state, promise, refused, selected

SCATTERED = "fedkin.testing.scattered:Scattered"
COMMON_OTHER = {
    "steps": 3,
    "momentum": 0.5,
    "weight_decay": 0.1,
    "lr_decay": 0.5,
    "batch_size": 5,
    "epochs": 2,
    "robust": "median",
    "optimiser": "adam",
    "moments": "keep",
    "clip": 0.01,
    "lr_schedule": "cosine:3",
    "server_optimiser": "adam",
    "server_momentum": 0.5,
}
COMMON_TOGETHER_WITH: dict[str, dict[str, Any]] = {"lr_decay_every": {"lr_decay": 0.5}, "moments": {"momentum": 0.5}}
COMMON_SILENT = {"halvings": "no training on the toy federation grows without bound"}
ALGORITHM_PROMISES: dict[str, Promise] = {}
"""Promise → its check, a function of a `Trial`."""


@dataclass(frozen=True)
class Expected:
    """How a method is run on a toy federation, and what cannot be expected of it there."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Where its defaults do not fit."""
    model: str | None = None
    """The only model to try (default: mlp:6, and bn-mlp:6 with batch norm)."""
    other: Mapping[str, Any] = field(default_factory=dict)
    """Another valid value of a parameter, where twice the default is not one or has no effect by definition."""
    together_with: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameters that only act together with others: those are set too."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Parameters without an effect on these numbers, and why."""
    one_process: str | None = None
    """What the method says when it refuses clients that are not all in one process; None: it does not."""


@dataclass(frozen=True)
class Trial:
    """A method put to the test."""

    method: type[Algorithm]
    expected: Expected = field(default_factory=Expected)

    @property
    def name(self) -> str:
        return self.method.name or self.method.__name__

    def make(self, **changes: Any) -> Algorithm:
        return self.method(**{"lr": 0.1, "epochs": 1, "batch_size": 8, **self.expected.parameters, **changes})

    def run(self, federation: Federation, algorithm: Algorithm | None = None, **options: Any) -> Result:
        settings = {"rounds": 3, "seed": 1, "dtype": "float64", "model": self.model(), **options}
        return fedkin.train(federation, settings.pop("model"), algorithm or self.make(), **settings)

    def model(self, otherwise: str = "mlp:6") -> str:
        return self.expected.model or otherwise

    def another(self, parameter: str) -> Any:
        """Another valid value of a parameter."""
        for values in (self.expected.other, COMMON_OTHER):
            if parameter in values:
                return values[parameter]
        value = getattr(self.make(), parameter)
        if isinstance(value, bool):
            return not value
        need(isinstance(value, int | float), f"say another valid value: other={{{parameter!r}: …}}")
        return value * 2 if value else 0.5


def check_algorithm(method: type[Algorithm], only: Iterable[str] | None = None, **expected: Any) -> None:
    """Raise an AssertionError if a method breaks a promise: see `ALGORITHM_PROMISES`, and every parameter has an effect.

    `expected` are the fields of `Expected`, for example `parameters={"clusters": 2}`; `only` chooses promises.
    Takes some seconds: each promise trains the method a few times on six small clients.
    """
    trial = Trial(method, Expected(**expected))
    for check in selected(ALGORITHM_PROMISES, only):
        check(trial)
    for parameter in method.model_fields if only is None else ():
        parameter_changes_the_result(trial, parameter)


@promise("it is documented and named", ALGORITHM_PROMISES)
def _documented(trial: Trial) -> None:
    method = trial.method
    need(method.name and method.name == method.name.lower(), f"its name is {method.name!r}; give one in lower case")
    need(method.title, "it has no title")
    need(method.__doc__ and method.__doc__ != Algorithm.__doc__, "it has no docstring of its own")
    for parameter, info in method.model_fields.items():
        need(info.description, f"the parameter {parameter} has no description")


@promise("the parameters validate and round-trip", ALGORITHM_PROMISES)
def _parameters(trial: Trial) -> None:
    method = trial.make()
    need(type(method)(**method.model_dump()) == method, "its own dump makes another method")
    with refused("did you mean 'lr'"):
        trial.make(lrr=1)
    with refused("lr = -1 is not allowed"):
        trial.make(lr=-1)
    with suppress(ValidationError):
        method.lr = 2.0
    need(method == trial.make(), "its parameters can be changed; keep frozen=True")


@promise("zero rounds give the initial models", ALGORITHM_PROMISES)
def _zero_rounds(trial: Trial) -> None:
    federation = uneven_federation()
    result = trial.run(federation, rounds=0)
    need(len(result.history) == 0, "the history is not empty")
    need(set(result.models) == set(federation.names), "not every client has a model")
    need(np.isfinite(result.summary("deployed")["mean"]), "the deployed models have no finite test metric")


@promise("it trains and reports every client", ALGORITHM_PROMISES)
def _trains(trial: Trial) -> None:
    federation = uneven_federation()
    result = trial.run(federation)
    need(len(result.history) == 3, f"the history of 3 rounds has {len(result.history)} records")
    for when in ("pre", "post", "deployed"):
        values = np.array(result.metrics[when]["test_accuracy"], dtype=float)
        told = ((values >= 0) & (values <= 1)).sum()
        need(told == (federation.test.sizes > 0).sum(), f"{told} clients have a test accuracy {when}")
    if result.influence is not None:
        need(np.allclose(result.influence.sum(axis=1), 1), "a row of the influence matrix does not sum to 1")
    need(isinstance(repr(result), str), "the result has no repr")


@promise("the deployed models have the reported accuracy", ALGORITHM_PROMISES)
def _reported_accuracy(trial: Trial) -> None:
    federation = uneven_federation()
    result = trial.run(federation)
    for k, client in enumerate(federation.names):
        x, y = federation.test[k]
        if len(x) and isinstance(result.models[client], nn.Module):
            with torch.no_grad():
                found = (result.models[client](torch.as_tensor(x)).argmax(dim=1).numpy() == y).mean()
            told = result.metrics["deployed"]["test_accuracy"][k]
            need(np.isclose(found, told, rtol=1e-6), f"client {client!r}: {found} measured, {told} reported")


@promise("the same seed gives the same numbers, another seed others", ALGORITHM_PROMISES)
def _seeds(trial: Trial) -> None:
    federation = uneven_federation()
    first, second, other = trial.run(federation), trial.run(federation), trial.run(federation, seed=2)
    need(np.array_equal(first.rows, second.rows), "two runs with one seed differ")
    need(not np.array_equal(first.rows, other.rows), "another seed changes nothing")


@promise("a run saves, loads and resumes bit by bit", ALGORITHM_PROMISES)
def _resumes(trial: Trial) -> None:
    federation = uneven_federation()
    with TemporaryDirectory() as folder:
        whole_folder, part_folder = Path(folder) / "whole", Path(folder) / "part"
        whole = trial.run(federation, rounds=4, checkpoint_every=1, out=whole_folder)
        trial.run(federation, rounds=2, checkpoint_every=1, out=part_folder)
        resumed = fedkin.resume(part_folder, federation, rounds=4)
        loaded = fedkin.load(whole_folder)
        need(np.array_equal(resumed.rows, whole.rows), "the rows of a resumed run differ")
        need(repr(resumed.metrics) == repr(whole.metrics), "the metrics of a resumed run differ")
        need(np.array_equal(loaded.rows, whole.rows), "the rows of a loaded result differ")
        billed = [result.history[-1]["bytes"] for result in (whole, loaded, resumed)]
        need(len(set(billed)) == 1, f"bytes exchanged differ: {billed} (whole, loaded, resumed)")
        for client in federation.names:
            before = whole.models[client]
            if isinstance(before, nn.Module):
                after = loaded.models[client].state_dict()
                same = all(torch.equal(value, after[key]) for key, value in before.state_dict().items())
                need(same, f"the loaded model of client {client!r} differs")


@promise("some clients may take part in a round", ALGORITHM_PROMISES)
def _partial_participation(trial: Trial) -> None:
    result = trial.run(uneven_federation(), cohort=2)
    told = [record["participants"] for record in result.history]
    need(told == [2, 2, 2], f"with a cohort of 2 the rounds had {told} participants")
    need(np.isfinite(result.rows).all(), "rows are not finite")


@promise("one client is enough", ALGORITHM_PROMISES)
def _one_client(trial: Trial) -> None:
    need(np.isfinite(trial.run(uneven_federation((20,))).rows).all(), "rows are not finite")


@promise("the order of clients does not matter", ALGORITHM_PROMISES)
def _order(trial: Trial) -> None:
    federation, order = uneven_federation(), np.array([3, 1, 5, 0, 4, 2])
    straight, shuffled = trial.run(federation, cohort=4), trial.run(federation.take(order), cohort=4)
    need(np.allclose(shuffled.rows, straight.rows[order], atol=1e-9), "permuted clients give other rows")
    for when in ("pre", "post"):
        mine, theirs = _losses(shuffled, when), _losses(straight, when)[order]
        need(np.allclose(mine, theirs, equal_nan=True), f"permuted clients give other losses {when}")


@promise("sharding does not matter", ALGORITHM_PROMISES)
def _sharding(trial: Trial) -> None:
    for model in dict.fromkeys(trial.model(each) for each in ("mlp:6", "bn-mlp:6")):
        federation = uneven_federation()
        together = trial.run(federation, model=model)
        if trial.expected.one_process is not None:
            with refused(trial.expected.one_process):
                trial.run(federation, model=model, engine=SCATTERED)
            return
        apart = trial.run(federation, model=model, engine=SCATTERED)
        need(np.allclose(apart.rows, together.rows, atol=1e-9), f"three hosts give other rows of {model}")
        for when in ("pre", "post"):
            same = np.allclose(_losses(apart, when), _losses(together, when), atol=1e-8, equal_nan=True)
            need(same, f"three hosts give other losses {when} of {model}")


@promise("the global random state is left alone", ALGORITHM_PROMISES)
def _random_state(trial: Trial) -> None:
    before = torch.get_rng_state(), numpys_state()
    trial.run(uneven_federation())
    need(torch.equal(before[0], torch.get_rng_state()), "torch's generator was used")
    need(np.array_equal(before[1], numpys_state()), "numpy's generator was used")


@promise("inputs are not changed", ALGORITHM_PROMISES)
def _inputs(trial: Trial) -> None:
    federation, method = uneven_federation(), trial.make()
    kept, dumped = copy.deepcopy(federation), method.model_dump()
    trial.run(federation, method)
    need(federation.fingerprint() == kept.fingerprint(), "the federation was changed")
    need(method.model_dump() == dumped, "the parameters were changed")


@promise("every parameter changes the result")
def parameter_changes_the_result(trial: Trial, parameter: str) -> None:
    """The check of one parameter of a `Trial`."""
    if parameter == "privacy":  # many refuse it, and graphs that tell of samples with it: tests/privacy tries them all
        return
    silent = {**COMMON_SILENT, **trial.expected.silent}
    if parameter in silent:
        need(silent[parameter], f"the silent parameter {parameter} needs a reason")
        return
    base = {**COMMON_TOGETHER_WITH.get(parameter, {}), **trial.expected.together_with.get(parameter, {})}
    federation, model = uneven_federation(), trial.model("bn-mlp:6")
    before = trial.run(federation, trial.make(**base), model=model)
    after = trial.run(federation, trial.make(**{**base, parameter: trial.another(parameter)}), model=model)
    same = np.array_equal(before.rows, after.rows) and repr(before.metrics) == repr(after.metrics)
    need(not same, f"{parameter} has no effect (if that is right, say why: silent={{{parameter!r}: …}})")


def _losses(result: Result, when: str) -> np.ndarray:
    return np.array(result.metrics[when]["test_loss"], dtype=float)
