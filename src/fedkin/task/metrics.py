"""Metrics by name: how one client's predictions are judged, on the client. A metric is one function and one registration.

A metric gets a client's predictions and targets as arrays and returns one number; nothing else leaves the client, so it need
not be a mean over samples. What it *needs* decides what it gets: "probabilities" (n, C) with labels (n,) or 0/1 columns
(n, C); "labels" (n,) or (n, C), predicted and true; "values" (n, entries), numbers in the units of the targets. NaN is "no
value": a client whose test part has one class has no AUROC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.plugins import find
from fedkin.task.losses import check_kind_of_task, imported

if TYPE_CHECKING:
    from fedkin.task.task import Kind

Needs = Literal["probabilities", "labels", "values"]
Function = Callable[[np.ndarray, np.ndarray], float]
OF_CLASSES: tuple[Kind, ...] = ("classification", "multilabel")
NUMBERS: tuple[Kind, ...] = ("regression",)


@dataclass(frozen=True)
class Metric:
    """A registered metric."""

    name: str
    function: Function
    needs: Needs
    kinds: tuple[Kind, ...]
    larger_is_better: bool
    unit: str = ""
    """"%" for shares told as percentages; "" for plain numbers and for numbers in the units of the target; or a unit."""
    low: float | None = None
    high: float | None = None
    """Between which numbers a value lies, where that is known: what a site tells outside of them is a lie."""

    def of(self, predicted: np.ndarray, true: np.ndarray) -> float:
        """One client's value; what a function does wrong is said in one line."""
        try:
            return float(self.function(predicted, true))
        except Exception as problem:
            reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:120]
            raise FedkinError(
                f"metric {self.name!r} fails on predictions {predicted.shape} and targets {true.shape}: {reason}"
            ) from problem

    @property
    def key(self) -> str:
        """As in histories and tables: balanced-accuracy is test_balanced_accuracy."""
        return self.name.replace("-", "_")

    # --- as people read it --------------------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        return self.name.replace("-", " ")

    @property
    def heading(self) -> str:
        """Over a column of numbers: accuracy %."""
        return f"{self.label} {self.unit}".rstrip()

    @property
    def better(self) -> str:
        return "larger is better" if self.larger_is_better else "smaller is better"

    def number(self, value: float | None) -> str:
        """A value without its unit; a dash where there is none.

        >>> METRICS["auroc"].number(0.931), METRICS["mae"].number(0.04123), METRICS["auroc"].number(float("nan"))
        ('93.1', '0.04123', '–')
        """
        if value is None or not math.isfinite(value):
            return "–"
        return f"{100 * value:.1f}" if self.unit == "%" else f"{value:.4g}"

    def amount(self, value: float | None) -> str:
        """A value in words: 93.1 %, or 0.0412."""
        shown = self.number(value)
        return shown if shown == "–" else f"{shown} {self.unit}".rstrip()

    def difference(self, value: float | None) -> str:
        """A signed difference: +2.9 points, or −0.0041."""
        if value is None or not math.isfinite(value):
            return "–"
        shown = f"{100 * value:+.1f} points" if self.unit == "%" else f"{value:+.3g} {self.unit}".rstrip()
        return shown.replace("-", "−")

    # --- as JSON ------------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """Everything but the function."""
        return {key: value for key, value in vars(self).items() if key != "function"}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Metric:
        """What `told` gave: enough to show values, not to compute them."""
        return cls(
            str(told["name"]),
            _only_shown,
            told["needs"],
            tuple(told["kinds"]),
            bool(told["larger_is_better"]),
            str(told["unit"]),
            told.get("low"),
            told.get("high"),
        )


def _only_shown(predicted: np.ndarray, true: np.ndarray) -> float:
    raise FedkinError("this metric was read from a file; import the module that registers it")


METRICS: dict[str, Metric] = {}


def metric(
    name: str,
    needs: Needs,
    larger_is_better: bool,
    unit: str = "",
    kinds: Sequence[Kind] | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Callable[[Function], Function]:
    """Register a function (predictions, targets) → number under a name. `kinds` default to those that have what it needs.

    `low` and `high` are the least and the largest value it can have, if there are such; shares ("%") lie in [0, 1].
    """
    if needs not in get_args(Needs):
        raise unknown("need of a metric", needs, get_args(Needs))
    for kind in kinds or ():
        check_kind_of_task(kind)
    if unit == "%":
        low, high = 0.0 if low is None else low, 1.0 if high is None else high

    def register(function: Function) -> Function:
        fitting = tuple(kinds) if kinds is not None else (NUMBERS if needs == "values" else OF_CLASSES)
        METRICS[name] = Metric(name, function, needs, fitting, larger_is_better, unit, low, high)
        return function

    return register


def find_metric(name: str) -> Metric:
    """The metric of a name; "package.module:function" imports a function that its module registers.

    The name may be one that an installed package announces (`fedkin.plugins`).
    """
    if name in METRICS:
        return METRICS[name]
    own = imported(name) or find("metric", name, METRICS)
    if name in METRICS:
        return METRICS[name]
    for known in METRICS.values():
        if known.function is own:
            return known
    raise FedkinError(f'metric {name!r} is not registered; decorate the function: @fedkin.metric("name", needs=…, …)')


@metric("accuracy", "labels", True, "%")
def accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """The share of right labels; of multi-label tasks, of right entries."""
    return float((predicted == true).mean())


@metric("balanced-accuracy", "labels", True, "%", kinds=("classification",))
def balanced_accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    """The mean over the client's classes of the share found."""
    return float(np.mean([(predicted[true == c] == c).mean() for c in np.unique(true)]))


@metric("f1", "labels", True, "%")
def f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """F1 of class 1 where there are two classes (0, 1), else the mean over the classes that occur."""
    from sklearn.metrics import f1_score

    if true.ndim == 1 and set(np.unique(true)) | set(np.unique(predicted)) <= {0, 1}:
        return float(f1_score(true, predicted, zero_division=0.0)) if (true == 1).any() else float("nan")
    return float(f1_score(true, predicted, average="macro", zero_division=0.0))


def one_against_rest(chances: np.ndarray, true: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """One 0/1 question per class or column for which the client has both answers: (its chance, its truth)."""
    if true.ndim == 1:
        if chances.shape[1] == 2:
            questions = [(chances[:, 1], true == 1)]
        else:
            questions = [(chances[:, c], true == c) for c in range(chances.shape[1])]
    else:
        questions = [(chances[:, c], true[:, c] == 1) for c in range(chances.shape[1])]
    return [(chance, truth) for chance, truth in questions if truth.any() and not truth.all()]


@metric("auroc", "probabilities", True, "%")
def auroc(chances: np.ndarray, true: np.ndarray) -> float:
    """Area under the ROC curve: of class 1, or the mean of one against the rest over classes that can be told apart."""
    from sklearn.metrics import roc_auc_score

    areas = [roc_auc_score(truth, chance) for chance, truth in one_against_rest(chances, true)]
    return float(np.mean(areas)) if areas else float("nan")


@metric("auprc", "probabilities", True, "%")
def auprc(chances: np.ndarray, true: np.ndarray) -> float:
    """Average precision, with classes as in auroc."""
    from sklearn.metrics import average_precision_score

    areas = [average_precision_score(truth, chance) for chance, truth in one_against_rest(chances, true)]
    return float(np.mean(areas)) if areas else float("nan")


def _one_hot(chances: np.ndarray, true: np.ndarray) -> np.ndarray:
    return np.eye(chances.shape[1])[true] if true.ndim == 1 else true


@metric("brier", "probabilities", False, low=0.0, high=2.0)
def brier(chances: np.ndarray, true: np.ndarray) -> float:
    """The mean squared distance of probabilities from the truth: of class 1 where there are two, else summed over classes.

    Of multi-label tasks, the mean over columns.
    """
    square = np.square(chances - _one_hot(chances, true))
    if true.ndim == 1:
        return float(square[:, 1].mean() if square.shape[1] == 2 else square.sum(axis=1).mean())
    return float(square.mean())


@metric("log-loss", "probabilities", False, low=0.0)
def log_loss(chances: np.ndarray, true: np.ndarray) -> float:
    """−mean log of the probability of the truth, whatever the training loss was."""
    tiny = np.finfo(chances.dtype).eps
    sure, truth = np.clip(chances, tiny, 1 - tiny), _one_hot(chances, true)
    if true.ndim == 1:
        return float(-np.log(np.clip(chances[np.arange(len(true)), true], tiny, 1)).mean())
    return float(-(truth * np.log(sure) + (1 - truth) * np.log(1 - sure)).mean())


@metric("ece", "probabilities", False, "%")
def ece(chances: np.ndarray, true: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error: Σ_bins share·|accuracy − confidence|, bins of equal width (Guo et al., 2017)."""
    if true.ndim == 1:
        sure, right = chances.max(axis=1), chances.argmax(axis=1) == true
    else:
        sure, right = np.maximum(chances, 1 - chances).reshape(-1), ((chances > 0.5) == (true == 1)).reshape(-1)
    place = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(place, weights=right.astype(float) - sure, minlength=bins)
    return float(np.abs(gap).sum() / len(sure))


@metric("mse", "values", False, low=0.0)
def mse(predicted: np.ndarray, true: np.ndarray) -> float:
    return float(np.square(predicted - true).mean())


@metric("rmse", "values", False, low=0.0)
def rmse(predicted: np.ndarray, true: np.ndarray) -> float:
    return float(np.sqrt(np.square(predicted - true).mean()))


@metric("mae", "values", False, low=0.0)
def mae(predicted: np.ndarray, true: np.ndarray) -> float:
    return float(np.abs(predicted - true).mean())


@metric("r2", "values", True, high=1.0)
def r2(predicted: np.ndarray, true: np.ndarray) -> float:
    """1 − Σ(y − ŷ)² / Σ(y − ȳ)², averaged over the entries of a target; no value where the targets do not vary."""
    spread = np.square(true - true.mean(axis=0)).sum(axis=0)
    if not (spread > 0).all():
        return float("nan")
    return float((1 - np.square(true - predicted).sum(axis=0) / spread).mean())
