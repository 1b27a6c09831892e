"""Task: what is learned, and the shapes that every client shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["classification", "regression"]


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
class Task:
    """What is learned: the kind of target and the shapes that every client shares.

    `input_shape` is the shape of one input; `classes` lists the original labels of a classification task, in the order
    of their codes 0…C−1; `output_shape` is the shape of one regression target (`()` for a single number).
    """

    kind: Kind
    input_shape: tuple[int, ...]
    classes: tuple[Any, ...] = ()
    output_shape: tuple[int, ...] = ()
    tokens: bool = False
    """Inputs are integer tokens (text) and stay integers; otherwise they are turned into floats."""
    forecast: Forecast | None = None
    """For forecasts: how targets are read; their errors are then reported beside the loss."""

    @property
    def outputs(self) -> int:
        """How many numbers a model puts out per input: the classes, or the entries of a regression target."""
        return len(self.classes) if self.kind == "classification" else int(np.prod(self.output_shape, dtype=int))

    @property
    def metric(self) -> str:
        """The headline metric: accuracy (larger is better) or mean squared error (smaller is better)."""
        return "accuracy" if self.kind == "classification" else "mse"

    @property
    def larger_is_better(self) -> bool:
        return self.kind == "classification"

    def told(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Task:
        """What `told` gave, back from JSON.

        >>> task = Task("regression", (12,), output_shape=(12,), forecast=Forecast(54.4, 19.5))
        >>> Task.read(task.told()) == task
        True
        """
        forecast = told.get("forecast")
        return cls(
            told["kind"],
            tuple(told["input_shape"]),
            tuple(told["classes"]),
            tuple(told["output_shape"]),
            bool(told["tokens"]),
            None if forecast is None else Forecast(**{**forecast, "told": tuple(forecast["told"])}),
        )
