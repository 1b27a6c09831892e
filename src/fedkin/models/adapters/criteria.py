"""The criterion an estimator is fitted by. A network takes any loss; an estimator only one that its authors gave it.

Cross entropy and squared error are what classifiers and regressors are fitted by unless told otherwise. Absolute, quantile,
Huber and Poisson losses are parameters of some of scikit-learn's estimators, and set there. Class weights and label
smoothing are weights of samples, which need no criterion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedkin.errors import FedkinError
from fedkin.task import Task
from fedkin.task.discrepancy import default_discrepancy
from fedkin.task.losses import described, parse_loss

TOLD: dict[str, Callable[[float], tuple[dict[str, Any], ...]]] = {
    "mae": lambda _: ({"criterion": "absolute_error"}, {"loss": "absolute_error"}),
    "poisson": lambda _: ({"criterion": "poisson"}, {"loss": "poisson"}),
    "quantile": lambda q: ({"loss": "quantile", "alpha": q}, {"loss": "quantile", "quantile": q}, {"quantile": q}),
    "huber": lambda delta: ({"loss": "huber", "epsilon": delta},),
}
"""Loss → the parameters by which estimators are told to minimise it; an estimator takes the first that it has all of."""
ALWAYS = {"PoissonRegressor": "poisson"}
"""Estimators that have one loss."""


def minimising(client: str, estimator: Any, task: Task, discrepancy: str | None) -> Any:
    """The estimator, set to minimise the task's loss; refused in one line where it cannot."""
    known, kind = described(task.loss), type(estimator).__name__
    name = task.loss if isinstance(task.loss, str) else getattr(task.loss, "__name__", "your function")
    if discrepancy is not None and discrepancy != default_discrepancy(task):
        raise FedkinError(
            f"client {client!r}: {kind} is fitted to its neighbours' predictions by the loss of its own samples; "
            f"discrepancy {discrepancy!r} takes a network"
        )
    if known is not None and known.name in ("cross-entropy", "bce", "mse", ALWAYS.get(kind)):
        return estimator
    if known is not None and known.name in TOLD and hasattr(estimator, "get_params"):
        from sklearn.base import clone

        path = "".join(f"{step}__" for step in _last_steps(estimator))
        for choice in TOLD[known.name](parse_loss(str(task.loss))[1] or 0.0):
            settings = {path + key: value for key, value in choice.items()}
            if settings.keys() <= estimator.get_params(deep=True).keys():
                changed = clone(estimator).set_params(**settings)
                if _fits(changed, task):
                    return changed
    raise FedkinError(
        f"client {client!r}: {kind} is fitted by a criterion of its own and cannot minimise loss {name!r}; "
        "give the client a network, or take another loss"
    )


def _last_steps(estimator: Any) -> list[str]:
    """The names of the steps that lead to a pipeline's last one; none for a plain estimator."""
    steps = getattr(estimator, "steps", None)
    return [steps[-1][0], *_last_steps(steps[-1][1])] if steps else []


def _fits(estimator: Any, task: Task) -> bool:
    """Whether a copy can be fitted to a few made-up samples: scikit-learn checks parameters only then."""
    from sklearn.base import clone

    rng = np.random.default_rng(0)
    try:
        clone(estimator).fit(
            rng.normal(size=(12, int(np.prod(task.input_shape)))), rng.integers(0, 4, 12).astype(float)
        )
    except Exception:  # whatever it says against the parameters, it cannot take them
        return False
    return True
