"""What is searched: several values of a parameter, or a range of numbers.

A list names the values, `[0.01, 0.1]`, unless the parameter is itself a list: what its declared type takes as it stands is a
value, and a list of such lists names several. Text `"0.01..0.3"`, or a pair (0.01, 0.3) in Python, is a range; it is searched
by orders of magnitude where its ends differ by a factor of ten or more.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from fedkin.errors import FedkinError, unknown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from fedkin.algorithm import Algorithm

BY_NAME = ("model", "graph")
"""What can be searched besides the parameters of a method, by name."""
RANGE = re.compile(r"\s*([^.\s][^\s]*?)\s*\.\.\s*([^\s]+)\s*")


@dataclass(frozen=True)
class OneOf:
    """These values, each as it was written."""

    values: tuple[Any, ...]

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution([label(value) for value in self.values])

    def value(self, found: Any) -> Any:
        """The value behind what Optuna drew."""
        return next(value for value in self.values if label(value) == found)

    def drawn(self, value: Any) -> Any | None:
        """What Optuna would have drawn for a value; None where it is not among these."""
        return label(value) if value in self.values else None

    def __str__(self) -> str:
        return "[" + ", ".join(str(label(value)) for value in self.values) + "]"


@dataclass(frozen=True)
class Between:
    """Numbers from `low` to `high`, whole ones where the parameter is."""

    low: float
    high: float
    whole: bool

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high / self.low >= 10

    def distribution(self) -> BaseDistribution:
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)

    def value(self, found: Any) -> Any:
        """A number with four digits is enough of a parameter, and can be read."""
        return int(found) if self.whole else float(f"{found:.4g}")

    def drawn(self, value: Any) -> Any | None:
        inside = isinstance(value, int | float) and self.low <= value <= self.high
        return value if inside else None

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


Space = Mapping[str, OneOf | Between]


def label(value: Any) -> str | int | float | bool | None:
    """A value as Optuna holds it: lists and tables as JSON text."""
    return value if isinstance(value, str | int | float | bool | None) else json.dumps(value, default=str)


def searched(name: str, value: Any, field: FieldInfo | None) -> OneOf | Between | None:
    """What a value written for a parameter asks to search; None: it is simply its value.

    >>> from fedkin.algorithms import FedCedar
    >>> fields = FedCedar.model_fields
    >>> print(searched("lr", [0.01, 0.1], fields["lr"]), searched("lr", "0.01..0.3", fields["lr"]))
    [0.01, 0.1] 0.01..0.3
    >>> searched("period", [2, 5], fields["period"]), searched("lr", 0.1, fields["lr"])
    (None, None)
    >>> print(searched("period", [[2, 5], [3]], fields["period"]))
    [[2, 5], [3]]
    """
    if isinstance(value, OneOf | Between):
        return value
    if field is not None and _takes(field, value):
        return None
    if isinstance(value, str) and (found := RANGE.fullmatch(value)):
        return _between(name, found[1], found[2], field)
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(end, int | float) for end in value):
        return _between(name, *value, field)
    if not isinstance(value, list | tuple):
        return None
    values = tuple(value)
    if not values or len({label(entry) for entry in values}) < len(values):
        raise FedkinError(f"{name} = {list(values)!r}: list each value to try once, at least one")
    return OneOf(values)


def _takes(field: FieldInfo, value: Any) -> bool:
    """Whether a parameter's declared type takes a value as it stands."""
    kind: Any = field.annotation
    for rule in field.metadata:
        kind = Annotated[kind, rule]
    try:
        TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError:
        return False
    return not (isinstance(value, str) and RANGE.fullmatch(value))


def _between(name: str, low: Any, high: Any, field: FieldInfo | None) -> Between:
    kinds = set() if field is None else {field.annotation, *get_args(field.annotation)}
    if not kinds & {int, float}:
        raise FedkinError(
            f"{name} = {low}..{high}: only numbers have a range; list values instead: {name} = [..., ...]"
        )
    whole = int in kinds and float not in kinds
    try:
        ends = float(low), float(high)
    except ValueError:
        raise FedkinError(f"{name} = {low}..{high} is no range; write two numbers, for example 0.01..0.3") from None
    if not all(map(math.isfinite, ends)) or not ends[0] < ends[1] or (whole and ends != tuple(map(round, ends))):
        kind = "whole numbers" if whole else "numbers"
        raise FedkinError(f"{name} = {low}..{high} is no range; write the smaller of two {kind} first")
    return Between(*ends, whole)


def apart(method: type[Algorithm], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, OneOf | Between]]:
    """Parameters of a method as they were given: those that are settled, and those that are to be searched."""
    space: dict[str, OneOf | Between] = {}
    for name, value in given.items():
        if name not in method.model_fields and name not in BY_NAME:
            raise unknown(f"parameter of {method.name}", name, [*method.model_fields, *BY_NAME])
        found = searched(name, value, None if name in BY_NAME else method.model_fields[name])
        if found is not None:
            space[name] = found
    return {name: value for name, value in given.items() if name not in space}, space


def grid(space: Space) -> list[dict[str, Any]] | None:
    """Every combination, as Optuna draws them; None where a range has no end of them."""
    lists = {name: entry for name, entry in space.items() if isinstance(entry, OneOf)}
    if len(lists) < len(space):
        return None
    return [dict(zip(lists, map(label, values))) for values in product(*(entry.values for entry in lists.values()))]


def refuse_bad_values(method: type[Algorithm], fixed: Mapping[str, Any], space: Space) -> None:
    """Try every listed value, and both ends of a range, before anything is trained; others at their settled value."""
    for name, entry in space.items():
        if name in BY_NAME:
            bad = [value for value in entry.values if not isinstance(value, str)] if isinstance(entry, OneOf) else []
            if bad:
                raise FedkinError(f"{name} = {entry}: {bad[0]!r} is no name")
            continue
        for value in entry.values if isinstance(entry, OneOf) else (entry.value(entry.low), entry.value(entry.high)):
            method(**{**fixed, name: value})


def refuse_lists(method: type[Algorithm], given: Mapping[str, Any]) -> None:
    """Several values of a parameter are for `fedkin tune`; a run takes one."""
    for name, value in given.items():
        field = method.model_fields.get(name)
        if isinstance(value, list | str) and field is not None and searched(name, value, field) is not None:
            raise FedkinError(
                f"{method.name}: {name} = {value} names several values; fedkin tune tries them, run takes one"
            )
