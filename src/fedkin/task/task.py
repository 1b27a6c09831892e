"""Task: what is learned, and the shapes that every client shares."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from fedkin.errors import FedkinError, unknown
from fedkin.files import OWN_FUNCTION

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedkin.task.losses import Link
    from fedkin.task.metrics import Metric

Kind = Literal["classification", "regression", "multilabel"]
KINDS: tuple[Kind, ...] = ("classification", "regression", "multilabel")
LOSS: dict[Kind, str] = {"classification": "cross-entropy", "regression": "mse", "multilabel": "bce"}
"""What a kind of task minimises when nothing else is asked."""
METRIC: dict[Kind, str] = {"classification": "accuracy", "regression": "mse", "multilabel": "accuracy"}
SURE = 1e-7
"""Probabilities and rates are kept this far from 0 where a logarithm is taken."""
RARE = 0.1
"""A class with a smaller share of the training samples is rare: who always says the other is right nine times in ten."""
INSTEAD = {
    "ordinal": "take task='regression' on the ranks (loss='mae' predicts the median rank), or task='classification'",
    "survival": "take task='classification' of “event before t” with censored rows dropped, or task='regression' of the "
    "logarithm of the times of observed events",
}
"""Kinds of target that fedkin does not know, and what to do."""


def check_kind(kind: str) -> str:
    """The kind, if it is one ("counts" is regression by its Poisson rate); others are refused with what to do instead."""
    if kind in INSTEAD:
        raise FedkinError(f"task {kind!r} is not supported; {INSTEAD[kind]}")
    if kind not in (*KINDS, "counts"):
        raise unknown("task", kind, [*KINDS, "counts"])
    return kind


def check_column_kind(kind: str) -> str:
    """The same of the one target column of a table."""
    if kind == "multilabel":
        raise FedkinError("task 'multilabel' has several target columns; give them as arrays: Federation.from_arrays")
    return check_kind(kind)


@dataclass(frozen=True)
class Forecast:
    """What makes a regression task a forecast: targets (steps,) are z-scores of values, one every `every` minutes.

    A target y stands for y·std + mean; a value equal to `missing` was not measured. Errors are told `told` minutes ahead.
    """

    mean: float
    std: float
    every: int = 5
    missing: float | None = 0.0
    told: tuple[int, ...] = (15, 30, 60)

    def step(self, minutes: int) -> int:
        """The place in a target of the value so many minutes ahead."""
        return minutes // self.every - 1


@dataclass(frozen=True)
class Scale:
    """Numbers as targets, standardised over the training samples of a federation: a target y stands for y·std + mean."""

    mean: float
    std: float

    @classmethod
    def fit(cls, values: np.ndarray) -> Scale:
        """
        >>> Scale.fit(np.array([10.0, 30.0]))
        Scale(mean=20.0, std=10.0)
        """
        std = float(np.std(values.astype(np.float64)))
        return cls(float(np.mean(values.astype(np.float64))), std if std > 0 else 1.0)

    def shrink(self, values: np.ndarray) -> np.ndarray:
        """From the target's units to what is learned."""
        return ((values.astype(np.float64) - self.mean) / self.std).astype(np.float32)

    def told(self, values: Tensor) -> Tensor:
        """From what is learned to the target's units."""
        return values * self.std + self.mean


@dataclass(frozen=True)
class Task:
    """What is learned: the kind of target, the shapes that every client shares, what is minimised and how it is judged.

    `input_shape` is the shape of one input; `classes` lists the original labels of a classification task, in the order
    of their codes 0…C−1; `output_shape` is the shape of one regression target (`()` for a single number) or of the 0/1
    columns of a multi-label target, (C,).
    """

    kind: Kind
    input_shape: tuple[int, ...]
    classes: tuple[Any, ...] = ()
    output_shape: tuple[int, ...] = ()
    tokens: bool = False
    """Inputs are integer tokens (text) and stay integers; otherwise they are turned into floats."""
    forecast: Forecast | None = None
    """For forecasts: how targets are read; their errors are then reported beside the loss."""
    loss: Any = None
    """What is minimised: "name[:option]" (see `fedkin.task.losses`), "package.module:function", or a function."""
    class_weight: tuple[float, ...] | None = None
    """How much a sample of each class counts, in the order of the classes (of multi-label tasks: each column's ones)."""
    label_smoothing: float = 0.0
    metrics: tuple[str, ...] = ()
    """How predictions are judged (see `fedkin.task.metrics`)."""
    headline: str = ""
    """The metric that tables and reports speak of: one of `metrics`."""
    described: Mapping[str, Metric] = field(default_factory=dict, compare=False, repr=False)
    """Metrics as a file describes them: to show a result of somebody's own metric, nothing is imported."""
    scale: Scale | None = None
    """For regression on a table: targets are z-scores. Losses speak of these, predictions and metrics of the target's units."""
    augment: Any = None
    """What is done to training batches: names (see `fedkin.augment`), "package.module:function", or a function."""

    def __post_init__(self) -> None:
        metrics = tuple(self.metrics) or (self.headline or METRIC[self.kind],)
        headline = self.headline or metrics[0]
        object.__setattr__(self, "loss", self.loss or LOSS[self.kind])
        object.__setattr__(self, "metrics", metrics if headline in metrics else (headline, *metrics))
        object.__setattr__(self, "headline", headline)

    @classmethod
    def of_numbers(
        cls, kind: str, inputs: tuple[int, ...], outputs: tuple[int, ...], forecast: Forecast | None = None, **more: Any
    ) -> Task:
        """A task whose targets are numbers or columns of 0 and 1, of this shape; counts are told by their Poisson rate.

        >>> Task.of_numbers("counts", (3,), ()).loss
        'poisson'
        """
        if kind == "counts":
            kind, more = "regression", {**more, "loss": "poisson"}
        return cls(cast(Kind, kind), inputs, output_shape=outputs, forecast=forecast, **more)

    # --- what the kind means; nothing outside of task/ asks for a kind, but for classes or what it needs to know -------

    @cached_property
    def one_label(self) -> bool:
        """A sample has one of several classes: targets are codes 0…C−1, outputs are logits of a softmax."""
        return self.kind == "classification"

    @cached_property
    def numeric(self) -> bool:
        """Targets are numbers, single or several."""
        return self.kind == "regression"

    @property
    def mixes_chances(self) -> bool:
        """What several models say is mixed as probabilities, each at a temperature of its own; else as numbers."""
        return self.one_label

    @property
    def estimator(self) -> Literal["classifier", "regressor"]:
        """Which kind of scikit-learn's estimators fits the targets."""
        return "regressor" if self.numeric else "classifier"

    def class_counts(self, targets: np.ndarray) -> np.ndarray | None:
        """Samples of each class (of multi-label targets: with each column), (C,); None where there are no classes."""
        if self.one_label:
            return np.bincount(targets, minlength=len(self.classes))
        return None if self.numeric else targets.sum(axis=0)

    @property
    def usual(self) -> bool:
        """One label by cross entropy or numbers by squared error, unweighted: all that some methods can take."""
        return self.plain_loss and (self.one_label or self.numeric)

    def in_units(self, scale: Scale | None) -> Task:
        """The same where numbers as targets were standardised: they and their errors are told in the target's own units."""
        return self if scale is None else replace(self, scale=scale, metrics=("mse", "rmse", "mae", "r2"))

    # --- shapes and numbers -------------------------------------------------------------------------------------------

    @cached_property
    def outputs(self) -> int:
        """How many numbers a model puts out per input: the classes, or the entries of a target."""
        return len(self.classes) if self.one_label else int(np.prod(self.output_shape, dtype=int))

    @property
    def wanted(self) -> str:
        """What a model must put out, in words."""
        return f"{self.outputs} {'classes' if self.one_label else 'numbers'}"

    @property
    def plain_loss(self) -> bool:
        """Whether the loss is the kind's own, unweighted and unsmoothed."""
        return bool(self.loss == LOSS[self.kind]) and self.class_weight is None and not self.label_smoothing

    def probe(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Made-up targets of so many samples: every class in turn, ones, or columns with 0 and 1 in turn."""
        import torch

        turn = torch.arange(math.prod(shape)).view(shape)
        if self.one_label:
            return turn % len(self.classes)
        if self.numeric:
            return torch.ones((*shape, *self.output_shape), dtype=dtype)
        return ((turn[..., None] + torch.arange(self.outputs)) % 2).to(dtype)

    @cached_property
    def link(self) -> Link:
        """How outputs are read: as logits of classes or of columns, as logarithms of rates, or as they are."""
        from fedkin.task.losses import LINKS, described

        known = described(self.loss) if not str(self.loss).startswith(OWN_FUNCTION) else None
        return LINKS[self.kind] if known is None else known.link

    def linked(self, outputs: Tensor) -> Tensor:
        """What outputs (n, C) say in the units of learning: probabilities, rates, or numbers (see `predictions`)."""
        if self.link == "softmax":
            return outputs.softmax(dim=-1)
        return {"sigmoid": outputs.sigmoid, "exp": outputs.exp, "identity": outputs.clone}[self.link]()

    def unlinked(self, said: Tensor) -> Tensor:
        """Outputs (n, C) that say this: the inverse of `linked`, probabilities and rates kept off 0 (and 1).

        >>> import torch
        >>> task = Task("multilabel", (3,), output_shape=(2,))
        >>> task.linked(task.unlinked(torch.tensor([[0.25, 1.0]]))).round(decimals=4)
        tensor([[0.2500, 1.0000]])
        """
        if self.link == "identity":
            return said
        return said.logit(eps=SURE) if self.link == "sigmoid" else said.clamp(min=SURE).log()

    def predictions(self, outputs: Tensor) -> Tensor:
        """What outputs (n, C) predict: probabilities of classes or columns, rates of counts, or the numbers themselves."""
        found = self.linked(outputs)
        return found if self.scale is None else self.scale.told(found)

    def soft(self, targets: np.ndarray) -> np.ndarray:
        """Targets as what a perfect model would say, (n, C) float64: labels are certain probabilities."""
        if self.one_label:
            return np.eye(self.outputs)[targets]
        return targets.reshape(len(targets), self.outputs).astype(np.float64)

    def firm(self, said: Tensor) -> Tensor:
        """The targets that `soft` gave this for: codes (n,) of classes, else (n, …) as they were."""
        return said.argmax(dim=1) if self.one_label else said.reshape(len(said), *self.output_shape)

    def labels(self, outputs: Tensor) -> Tensor:
        """The labels that outputs (n, C) predict: codes (n,), or 0/1 columns (n, C)."""
        return outputs.argmax(dim=1) if self.one_label else (outputs > 0).to(outputs.dtype)

    # --- judging ------------------------------------------------------------------------------------------------------

    @cached_property
    def metric(self) -> str:
        """The key of the headline metric in histories: `test_<metric>`, with underscores."""
        return self.headline_metric.key

    @cached_property
    def headline_metric(self) -> Metric:
        return self._metric(self.headline)

    def _metric(self, name: str) -> Metric:
        from fedkin.task.metrics import find_metric

        return self.described.get(name) or find_metric(name)

    @property
    def larger_is_better(self) -> bool:
        return self.headline_metric.larger_is_better

    @property
    def unit(self) -> str:
        """ "%" where the headline is told as a percentage; "" for plain numbers."""
        return self.headline_metric.unit

    @property
    def percent(self) -> bool:
        return self.unit == "%"

    @cached_property
    def metric_keys(self) -> tuple[str, ...]:
        return tuple(self._metric(name).key for name in self.metrics)

    @property
    def percentages(self) -> tuple[str, ...]:
        """The keys of the metrics that are told as percentages."""
        return tuple(metric.key for metric in map(self._metric, self.metrics) if metric.unit == "%")

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Between which numbers each metric lies, by its key; infinite where nothing is known."""
        found = {metric.key: (metric.low, metric.high) for metric in map(self._metric, self.metrics)}
        return {
            key: (-math.inf if low is None else low, math.inf if high is None else high)
            for key, (low, high) in found.items()
        }

    def judge(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Every metric of one client's outputs (n, C) on its targets; NaN where there is no value."""
        from fedkin.task.metrics import find_metric

        outputs = outputs.double().reshape(len(targets), -1)
        numbers = targets if self.scale is None else self.scale.told(targets.double())
        true = targets.cpu().numpy() if self.one_label else numbers.double().reshape(outputs.shape).cpu().numpy()
        found = {}
        for each in map(find_metric, self.metrics):
            said = self.labels(outputs) if each.needs == "labels" else self.predictions(outputs)
            found[each.key] = each.of(said.cpu().numpy(), true)
        return found

    # --- as JSON ------------------------------------------------------------------------------------------------------

    def told(self) -> dict[str, Any]:
        """As JSON can hold it."""
        loss = self.loss if isinstance(self.loss, str) else function_name(self.loss)
        described = {name: self._metric(name).told() for name in self.metrics}
        bare = asdict(replace(self, loss=None, described={}, augment=None))
        told = {**bare, "loss": loss, "described": described}
        augment = self.augment if isinstance(self.augment, str | None) else function_name(self.augment)
        return {**told, "augment": augment} if augment else {k: v for k, v in told.items() if k != "augment"}

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Task:
        """What `told` gave, back from JSON; what older versions wrote has no loss and no metrics: the kind's own.

        >>> task = Task("regression", (12,), output_shape=(12,), forecast=Forecast(54.4, 19.5), loss="huber:1")
        >>> Task.read(task.told()) == task
        True
        """
        from fedkin.task.metrics import METRICS, Metric

        forecast, weight, scale = told.get("forecast"), told.get("class_weight"), told.get("scale")
        strange = {name: own for name, own in told.get("described", {}).items() if name not in METRICS}
        return cls(
            told["kind"],
            tuple(told["input_shape"]),
            tuple(told["classes"]),
            tuple(told["output_shape"]),
            bool(told["tokens"]),
            None if forecast is None else Forecast(**{**forecast, "told": tuple(forecast["told"])}),
            told.get("loss"),
            None if weight is None else tuple(weight),
            float(told.get("label_smoothing", 0.0)),
            tuple(told.get("metrics", ())),
            told.get("headline", ""),
            {name: Metric.read(own) for name, own in strange.items()},
            None if scale is None else Scale(float(scale["mean"]), float(scale["std"])),
            told.get("augment"),
        )


def function_name(function: Any) -> str:
    """A function as "package.module:function", by which another process can import it; else only what it is called."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", type(function).__name__)
    found = getattr(sys.modules.get(str(module)), name, None)
    return f"{module}:{name}" if found is function and module != "__main__" else OWN_FUNCTION + name
