"""One task for all: what most clients' data are for, and which client does not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedkin.engines.flower.messages import Described, one_line
from fedkin.engines.flower.register import Begun
from fedkin.engines.flower.scheme import agreed_scale, agreed_scheme, column_kind, width_of
from fedkin.engines.flower.settings import FederationSettings
from fedkin.errors import FedkinError
from fedkin.task import Task


@dataclass(frozen=True)
class Majority:
    """What most sites have, told by the first client of each."""

    settings: FederationSettings
    labelled: bool
    """Whether targets are classes."""
    shape: tuple[Any, ...]
    text: bool
    """Whether classes are text."""
    first: str
    """A client like most."""

    @classmethod
    def of(cls, sites: Collection[Sequence[Described]], settings: FederationSettings) -> Majority:
        kind = settings.task or most_frequent("labels" if _labelled(site[0]) else "numbers" for site in sites)
        labelled = kind in ("labels", "classification")
        shape = most_frequent(_shape(site[0]) for site in sites)
        text = most_frequent(_words(site[0]) for site in sites) if labelled else False
        return cls(settings, labelled, shape, text, next(c.name for site in sites for c in site if _shape(c) == shape))

    def fault(self, client: Described, everyone: Sequence[Described]) -> str | None:
        """Why a client does not fit the others."""
        return (
            _misfit(client, self.first, self.shape)
            or _other_kind(client, everyone)
            or (_unlike(client, self.first, self.text, self.settings) if self.labelled else None)
        )

    def task(self, everyone: list[Described]) -> Task:
        """The task of clients that all fit."""
        task, scheme = _task(everyone, self.labelled, self.settings), agreed_scheme(everyone)
        return task if not scheme else prepared_task(task, scheme, everyone)


def prepared_task(task: Task, scheme: list[dict[str, Any]], clients: list[Described]) -> Task:
    """The task on prepared inputs; numbers as targets are standardised and told in their own units."""
    task = replace(task, input_shape=(width_of(scheme),))
    return task.in_units(agreed_scale(clients) if task.usual and not task.classes else None)


def task_of(begun: Begun, settings: FederationSettings) -> Task:
    """The task that a run began with."""
    return replace(Task.read({**begun.task, "forecast": None}), forecast=settings.forecast)


def most_frequent(values: Iterable[Any]) -> Any:
    """The most frequent value, the first of those that are equally frequent."""
    return Counter(values).most_common(1)[0][0]


def _labelled(client: Described) -> bool:
    return client.labels is not None


def _words(client: Described) -> bool:
    return any(isinstance(label, str) for label in client.labels or ())


ASPECTS = (("input_shape", "inputs of shape"), ("columns", "columns"), ("output_shape", "targets of shape"))


def _shape(client: Described) -> tuple[Any, ...]:
    values = (getattr(client, key) for key, _ in ASPECTS)
    return tuple(None if value is None else tuple(value) for value in values)


def _misfit(client: Described, first: str, shape: tuple[Any, ...]) -> str | None:
    for (_, what), mine, due in zip(ASPECTS, _shape(client), shape):
        if mine != due:
            told, most = (value if value is None else list(value) for value in (mine, due))
            return one_line(
                f"client {client.name!r} has {what} {told}, but {first!r} has {most}; all clients need the same"
            )
    return None


def _other_kind(client: Described, everyone: Sequence[Described]) -> str | None:
    """Why a raw column does not fit: numbers at most clients, texts at this one, or the other way round."""
    for k, column in enumerate(client.table or ()):
        most = column_kind([c for c in everyone if c.columns == client.columns], k)
        if column.holds not in ("empty", most):
            name = (client.columns or [])[k]
            return one_line(
                f"client {client.name!r}: column {name!r} holds {column.holds}s, but {most}s at most clients"
            )
    return None


def _unlike(client: Described, first: str, text: bool, settings: FederationSettings) -> str | None:
    """Why a client's labels do not fit those of the others."""
    if client.labels is None:
        return f"client {client.name!r} has real numbers as targets, but {first!r} has labels"
    if any(isinstance(label, str) != text for label in client.labels):
        return "some clients have numbers as labels, others text; use one kind"
    strange = [label for label in client.labels if settings.classes is not None and label not in settings.classes]
    if strange:
        told = one_line(repr(strange[0]))
        return f"client {client.name!r} holds label {told}, which is not among the classes {settings.classes}"
    return None


def _task(clients: list[Described], labelled: bool, settings: FederationSettings) -> Task:
    first = clients[0]
    inputs = tuple(first.input_shape)
    if not labelled:
        outputs = tuple(first.output_shape)
        if settings.forecast is not None and len(outputs) != 1:
            raise FedkinError(f"forecast: targets must be series of shape (steps,), but {first.name!r} has {outputs}")
        return Task.of_numbers(settings.task or "regression", inputs, outputs, settings.forecast)
    if settings.forecast is not None:
        raise FedkinError(f"forecast: client {first.name!r} has labels; a forecast needs numbers as targets")
    found: set[Any] = {label for client in clients for label in client.labels or ()}
    known = tuple(settings.classes or sorted(found))
    if len(known) < 2:
        raise FedkinError(f"all clients hold the single class {list(known)}; classification needs at least two")
    return Task("classification", inputs, classes=known)
