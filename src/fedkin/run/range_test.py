"""A range test at the start of a run: other rates, and Adam, are tried on a fold of the training samples; the run trains as does best.

Every way trains the same method for two fifths of the rounds on four fifths of each client's training samples; the loss on the rest
decides, that of the models which clients would deploy, a mean over clients. Shorter trials favour what is fast at first
(docs/networks.md). Test samples are never seen. With the five ways below it costs two runs of training more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.result import Result
from fedkin.run.options import Options

TRIED_FOR = 0.4
"""Of the rounds of the run."""
TRIAL_FOLDS = 5
"""One of so many parts of the training samples is held out of the trials."""
CHOSEN = ("lr", "optimiser", "momentum", "clip")
"""What a range test chooses, and a user therefore cannot give."""
WAYS: tuple[dict[str, Any], ...] = (
    {"times": 0.2},
    {"times": 4.0, "clip": 1.0},
    {"lr": 0.001, "optimiser": "adam"},
    {"lr": 0.01, "optimiser": "adam"},
)
"""What is tried beside the method as it is; `times` is a multiple of its rate."""


def ways(method: Algorithm) -> list[dict[str, Any]]:
    """The parameters to try, the method's own ({}) first.

    >>> ways(algorithms.make("fedavg"))[:3]
    [{}, {'lr': 0.01}, {'lr': 0.2, 'clip': 1.0}]
    """
    found: list[dict[str, Any]] = [{}]
    for way in WAYS:
        given = {name: value for name, value in way.items() if name != "times"}
        rate = {"lr": round(method.lr * way["times"], 12)} if "times" in way else {}
        found.append(rate | given)
    return found


def refuse(method: Algorithm) -> None:
    """Refuse what a range test cannot be together with."""
    given = [name for name in CHOSEN if name in method.model_fields_set]
    if given:
        raise FedkinError(f"{method.name}: range_test chooses {', '.join(CHOSEN)}; leave {given[0]} out, or range_test")
    if method.privacy is not None:
        raise FedkinError(f"{method.name}: every trial of a range test would spend ε; leave range_test out")


def short(options: Options) -> Options:
    """The options of a trial."""
    rounds = max(1, round(TRIED_FOR * options.rounds))
    quiet = {"range_test": False, "validation": "given", "global_test": False, "rows_file": None, "eval_every": rounds}
    return options.model_copy(update={**quiet, "rounds": rounds})


def loss_held_out(result: Result) -> float:
    """The loss on what was held out, a mean over clients; infinite where nothing is left of a model."""
    losses = np.array(result.metrics["deployed"]["validation_loss"], dtype=float)
    return float(np.mean(losses[~np.isnan(losses)])) if not np.isnan(losses).all() else float("inf")


def best_way(method: Algorithm, trial: Callable[[Algorithm], Result]) -> tuple[Algorithm, str]:
    """The method with the training whose trial has the smallest loss, and a line that says so. Of equals, the earlier one.

    A way that the method refuses, or whose trial breaks off, is out of the question.
    """
    if method.own_rate:
        return method, f"{method.name} has rates of its own, which the range test leaves alone: fedkin tune"
    losses: list[tuple[float, dict[str, Any], Algorithm]] = []
    own, problem = float("nan"), ""
    for way in ways(method):
        try:
            tried = algorithms.with_parameters(method, **way)
            loss = loss_held_out(trial(tried))
        except FedkinError as fault:
            problem = problem or str(fault)
            continue
        own = own if way else loss
        losses.append((loss, way, tried))
    if not losses:
        raise FedkinError(f"no trial of the range test came to an end: {problem}")
    loss, way, chosen = min(losses, key=lambda one: one[0])
    named = ", ".join(f"{name}={value}" for name, value in way.items()) or "the defaults"
    beside = f" ({own:.4g} with the defaults)" if way and np.isfinite(own) else ""
    return chosen, f"the range test chose {named}: loss {loss:.4g} on samples held out{beside}"
