"""The one error users see: a sentence that names the culprit and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class FedkinError(ValueError):
    """Bad input, found before any training starts. The command line prints it as one line and exits with 2."""


class EveryoneFailed(FedkinError):
    """No client answered a question well; `failed`: client → reason."""

    def __init__(self, message: str, failed: Mapping[str, str]) -> None:
        super().__init__(message)
        self.failed = dict(failed)


class Forgot(Exception):
    """The process of a client is a new one, and no longer holds what a task works on: its host answers just that."""


def unknown(kind: str, name: object, known: Iterable[object]) -> FedkinError:
    """An error for an unknown name that lists the near matches.

    >>> print(unknown("algorithm", "fedpmp", ["fedavg", "fedpnp"]))
    unknown algorithm 'fedpmp'; did you mean 'fedpnp', 'fedavg'?
    >>> print(unknown("metric", "AUROC", ["mse", "auroc"]))
    unknown metric 'AUROC'; did you mean 'auroc'?
    >>> print(unknown("algorithm", "zzz", ["fedavg", "fedpnp"]))
    unknown algorithm 'zzz'; choose one of: fedavg, fedpnp
    """
    names = list(dict.fromkeys(map(str, known)))
    shown = [repr(entry) if entry.split() != [entry] else entry for entry in names]  # blanks in a name must be seen
    close = get_close_matches(str(name).lower(), {entry.lower() for entry in names}, n=3, cutoff=0.5)
    near = [entry for each in close for entry in names if entry.lower() == each][:3]
    if near:
        return FedkinError(f"unknown {kind} {str(name)!r}; did you mean {', '.join(map(repr, near))}?")
    return FedkinError(f"unknown {kind} {str(name)!r}; choose one of: {', '.join(shown)}")


def refuse_truth_values(owner: str, model: type[BaseModel], given: Mapping[str, Any]) -> None:
    """true is no number: pydantic would take it for 1."""
    for key, value in given.items():
        field = model.model_fields.get(key)
        if isinstance(value, bool) and field is not None:
            kinds = {field.annotation, *get_args(field.annotation)}
            if kinds & {int, float} and bool not in kinds:
                raise FedkinError(f"{owner}: {key} = {value} is not allowed: give a number, not true or false")


def first_fault(owner: str, problem: ValidationError) -> str:
    """The first fault of a pydantic error in one line: the parameter, its value, and what is allowed.

    A name that nobody knows comes before one that is missing: it is often that one, misspelt.
    """
    faults = problem.errors()
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    name = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "missing":
        return f"{owner}: {name} is missing"
    if fault["type"] == "extra_forbidden":
        return f"{owner}: {name} is unknown"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not name:  # of several parameters together
        return f"{owner}: {message}"
    return f"{owner}: {name} = {fault.get('input')!r} is not allowed: {message[0].lower()}{message[1:]}"
