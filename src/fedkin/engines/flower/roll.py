"""The roll call: wait for the sites, hear whom they host, agree on a task, and leave out those that do not fit.

A site that says something malformed, claims another's clients or has other inputs than most is excluded with the reason;
the run begins if enough remain.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedkin.engines.flower.line import Line
from fedkin.engines.flower.messages import MOST_SAMPLES, Described, Hello, Join, Sized, one_line, read_head
from fedkin.engines.flower.register import Begun, Register
from fedkin.engines.flower.scheme import agreed_scale, agreed_scheme, column_kind, width_of
from fedkin.engines.flower.setup import SITES, Setup, allowed_model
from fedkin.engines.flower.wire import HEAD_LIMIT, Message
from fedkin.errors import FedkinError
from fedkin.federation.folds import fold_names, fold_sizes, is_series
from fedkin.roster import Roster
from fedkin.task import Forecast, Task, check_kind
from fedkin.task.choice import chosen


class FederationSettings(BaseModel):
    """Who takes part, and how each site splits its data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sites: int = Field(ge=1, description="how many sites must be there to begin")
    wait: float = Field(300.0, gt=0, description="seconds to wait for them")
    timeout: float = Field(600.0, gt=0, description="seconds a site may take for one answer")
    task: str | None = Field(
        None, description="classification, regression, multilabel or counts, where data leave it open"
    )
    classes: list[str | int] | None = None
    test_fraction: float = Field(0.25, ge=0, lt=1)
    validation_fraction: float = Field(0.0, ge=0, lt=1)
    split_seed: int = Field(0, ge=0)
    prepare: bool = Field(
        False, description="sites give raw tables; agree on how to fill, scale and encode their columns"
    )
    forecast: Forecast | None = None
    """Targets are z-scores of a series: its mean and std, minutes between values, the value that means none."""
    accept: list[str] = []
    """Clients that may come back through another key, or with other data; "*" for all."""
    accept_changes: bool = False
    """Go on with a run although its files were changed, or another version of fedkin began it."""
    owners: dict[int, list[str]] = {}
    """Node → the clients that it alone may speak for; those not named belong to the site that first joins with them."""
    most_samples: int = Field(10**7, ge=1, le=MOST_SAMPLES, description="samples a client may claim to have")
    update_limit: float = Field(1e3, gt=1, description="how many times the others' median an update may be")

    @field_validator("task")
    @classmethod
    def _known_task(cls, task: str | None) -> str | None:
        return None if task is None else check_kind(task)


@dataclass(frozen=True)
class Called:
    """Who takes part."""

    roster: Roster
    members: list[np.ndarray]
    """Positions, in the roster, of every site's clients."""
    nodes: list[int]
    setup: Setup
    own: dict[str, str | None]
    """Client → the model it names."""
    away: frozenset[int] = frozenset()
    """Sites of a run that goes on which did not join again yet."""


def in_folds(called: Called, count: int, used: int, seed: int) -> Called:
    """The same sites, where every client stands for its folds and for itself whole; no test sample is within reach."""
    roster, size = called.roster, len(called.roster)
    sizes = fold_sizes(roster.train + roster.validation, count, used, is_series(roster.task))
    names = fold_names(roster.names, used, whole=True)
    further = replace(roster, names=names, train=sizes[0], validation=sizes[1], test=np.zeros_like(sizes[0]))
    starts = size * np.arange(used + 1)
    members = [(starts[:, None] + own[None]).ravel() for own in called.members]
    return replace(called, roster=further, members=members, setup=replace(called.setup, folds=(count, used, seed)))


def those_sites(called: Called, places: Sequence[int]) -> Called:
    """These sites alone, by their places in `called`, with their clients."""
    ids = np.concatenate([called.members[place] for place in places])
    roster, ends = called.roster, np.cumsum([len(called.members[place]) for place in places])
    names = tuple(roster.names[k] for k in ids)
    counts = None if roster.label_counts is None else roster.label_counts[ids]
    parts = {part: getattr(roster, part)[ids] for part in ("train", "validation", "test")}
    return replace(
        called,
        roster=replace(roster, names=names, **parts, graph=None, truth={}, label_counts=counts),
        members=np.split(np.arange(len(ids)), ends[:-1]),
        nodes=[called.nodes[place] for place in places],
        own={name: called.own[name] for name in names if name in called.own},
        away=frozenset(at for at, place in enumerate(places) if place in called.away),
    )


@dataclass
class Roll:
    """One roll call: what every node said, and why some are left out."""

    line: Line
    settings: FederationSettings
    register: Register
    model: str
    allowed: list[str]
    learning: Mapping[str, Any] = field(default_factory=dict)
    """The loss and metrics that the run asks for."""
    remembers: Any = None
    """What the method gives the network to remember by (`Algorithm.remembers`)."""
    report: Callable[[str], None] = print
    told: dict[int, list[Described]] = field(default_factory=dict)
    excluded: dict[int, str] = field(default_factory=dict)

    def call(self, dtype: str, seed: int, resumed: bool = False) -> Called:
        """Who takes part. A run that is `resumed` has the clients it began with, whoever of them is there now."""
        begun = self.register.begun if resumed else None
        self._hello()
        while True:
            s, agreed = self.settings, self._agreed() if begun is None else _task_of(begun, self.settings)
            scheme = agreed_scheme(self._everyone()) if begun is None else begun.inputs
            balanced = self.learning.get("class_weight") == "balanced"
            counted = balanced and agreed.class_weight is None  # a run that goes on has the weights it began with
            asked = {**self.learning, "class_weight": None} if balanced else self.learning
            setup = Setup(
                chosen(agreed, **asked),
                self.model,
                dtype,
                seed,
                s.test_fraction,
                s.validation_fraction,
                s.split_seed,
                self.remembers,
                inputs=scheme,
            )
            facts = self._join(setup, counted)
            # A site that was excluded on the way may have brought labels of its own.
            if begun is not None or self._agreed() == agreed:
                break
        if counted:
            total = np.sum([client.class_counts or [] for client in facts.values()], axis=0)
            setup = replace(setup, task=chosen(agreed, **self.learning, counts=total))
            agreed = replace(agreed, class_weight=setup.task.class_weight)
        joined = {node: {c.name: facts[c.name].fingerprint for c in own} for node, own in self.told.items()}
        begun = begun or self._begun(facts, agreed, scheme)
        self.register.enter(joined, begun)
        place = {name: k for k, name in enumerate(begun.names)}
        known = {n: sorted(place[name] for name in own if name in place) for n, own in self.register.sites.items()}
        nodes = sorted((node for node in known if known[node]), key=lambda node: known[node][0])
        train, validation, test = (np.array(part) for part in (begun.train, begun.validation, begun.test))
        roster = Roster(
            tuple(begun.names), setup.task, train, validation, test, begun.fingerprint, source={"flower": len(nodes)}
        )
        roster = replace(roster, inputs=tuple(scheme))
        away = frozenset(host for host, node in enumerate(nodes) if node not in self.told)
        return Called(roster, [np.array(known[node]) for node in nodes], nodes, setup, dict(begun.own), away)

    def _begun(self, facts: Mapping[str, Sized], task: Task, scheme: list[dict[str, Any]]) -> Begun:
        """What the run begins with: sites in the order of their first names, clients as their sites have them."""
        order = sorted(self.told.values(), key=lambda own: min(client.name for client in own))
        own = {client.name: client.model for clients in order for client in clients}
        sizes = {part: [getattr(facts[name], part) for name in own] for part in ("train", "validation", "test")}
        told_data = json.dumps([list(own), [facts[name].fingerprint for name in own]]).encode()
        fingerprint = hashlib.blake2b(told_data, digest_size=12).hexdigest()
        return Begun(names=list(own), **sizes, fingerprint=fingerprint, own=own, task=task.told(), inputs=scheme)

    def _everyone(self) -> list[Described]:
        return [client for site in self.told.values() for client in site]

    # --- leaving out --------------------------------------------------------------------------------------------------

    def _exclude(self, node: int, reason: str) -> None:
        self.told.pop(node, None)
        self.excluded[node] = reason
        self.report(f"the site at node {node} cannot take part: {reason}")

    def _enough(self) -> None:
        if len(self.told) < self.settings.sites:
            known = ", ".join(client.name for site in self.told.values() for client in site) or "none"
            faults = "".join(f"; the site at node {n} cannot take part: {why}" for n, why in self.excluded.items())
            raise FedkinError(
                f"{len(self.told)} of {self.settings.sites} sites were there after {self.settings.wait:g} s "
                f"(clients: {known}){faults}"
            )

    def _ask(self, nodes: Iterable[int], head: Mapping[str, Any]) -> dict[int, Message]:
        """What nodes answer; one that does not is excluded."""
        nodes = list(nodes)
        if not nodes:
            return {}
        message = Message(head)
        found = self.line.send(dict.fromkeys(nodes, message), dict.fromkeys(nodes, HEAD_LIMIT), self.settings.timeout)
        for node, got in found.items():
            if isinstance(got, str):
                self._exclude(node, one_line(got))
        return {node: got for node, got in found.items() if isinstance(got, Message)}

    # --- who is there -------------------------------------------------------------------------------------------------

    def _hello(self) -> None:
        end = time.monotonic() + self.settings.wait
        while True:
            new = [node for node in self.line.nodes() if node not in self.told and node not in self.excluded]
            late = time.monotonic() > end
            if late or len(self.told) + len(new) >= self.settings.sites:  # all at once: an answer takes seconds
                for node, got in self._ask(new, self._greeting()).items():
                    try:
                        self.told[node] = read_head(Hello, got).clients
                        self._check_claims(node)
                    except FedkinError as problem:
                        self._exclude(node, str(problem).removeprefix("refused: "))
                self._settle_claims()
            if len(self.told) >= self.settings.sites:
                return
            if late:
                self._enough()
            time.sleep(1)

    def _greeting(self) -> dict[str, Any]:
        return {"kind": "hello", **({"prepare": True} if self.settings.prepare else {})}

    def _check_claims(self, node: int) -> None:
        """What a node says of its own clients alone: whether they are its own, and what models they bring."""
        clients = self.told[node]
        fault = self.register.fault(node, {client.name: None for client in clients})
        for client in clients if self.model == SITES and fault is None else []:
            if client.model is None:
                fault = f"client {client.name!r} names no model in its site.toml; add for example model = 'tree:5'"
            else:
                fault = fault or allowed_model(client.model, self.allowed)
        if fault:
            raise FedkinError(fault)

    def _settle_claims(self) -> None:
        """A client that two sites claim belongs to the one it is registered with; if it is with none, to neither."""
        claims = Counter(client.name for site in self.told.values() for client in site)
        twice = {name for name, count in claims.items() if count > 1}
        for node, clients in list(self.told.items()):
            name = next((c.name for c in clients if c.name in twice and self.register.owner(c.name) != node), None)
            if name is not None:
                self._exclude(node, f"client {name!r} is at two sites; give every client its own name")

    def _join(self, setup: Setup, counted: bool) -> dict[str, Sized]:
        """Sizes and hashes of every client; a site that does not tell them, or not its own, is excluded.

        Samples per class are asked for where they are `counted`, and leave a site only if its policy says so.
        """
        facts: dict[str, Sized] = {}
        head = {"kind": "join", "setup": setup.told(), **({"class_counts": True} if counted else {})}
        for node, got in self._ask(list(self.told), head).items():
            try:
                mine = {client.name: client for client in read_head(Join, got).clients}
                if set(mine) != {client.name for client in self.told[node]}:
                    raise FedkinError("joined with other clients than it said hello for")
                self._check_sizes(node, mine)
                self._check_counts(setup.task, mine, counted)
                facts |= mine
            except FedkinError as problem:
                self._exclude(node, str(problem).removeprefix("refused: "))
        self._enough()
        return facts

    def _check_sizes(self, node: int, mine: Mapping[str, Sized]) -> None:
        most = self.settings.most_samples
        for client in mine.values():
            if max(client.train, client.validation, client.test) > most:
                raise FedkinError(f"client {client.name!r} claims more than {most:,} samples (most_samples)")
        fault = self.register.fault(node, {name: client.fingerprint for name, client in mine.items()})
        if fault:
            raise FedkinError(fault)

    def _check_counts(self, task: Task, mine: Mapping[str, Sized], counted: bool) -> None:
        for client in mine.values() if counted else ():
            told = client.class_counts
            if told is None or len(told) != task.outputs or max(told) > client.train:
                raise FedkinError(f"client {client.name!r} does not tell how many of its samples are of each class")

    # --- one task for all ---------------------------------------------------------------------------------------------

    def _agreed(self) -> Task:
        """The task that most sites' data are for; the others are excluded, named by the client that does not fit."""
        kind = self.settings.task or most_frequent(
            "labels" if _labelled(site[0]) else "numbers" for site in self.told.values()
        )
        labelled = kind in ("labels", "classification")
        shape = most_frequent(_shape(site[0]) for site in self.told.values())
        text = most_frequent(_words(site[0]) for site in self.told.values()) if labelled else False
        first = next(c.name for site in self.told.values() for c in site if _shape(c) == shape)
        for node, clients in list(self.told.items()):
            for client in clients:
                fault = (
                    _misfit(client, first, shape)
                    or self._other_kind(client)
                    or (_unlike(client, first, text, self.settings) if labelled else None)
                )
                if fault:
                    self._exclude(node, fault)
                    break
        self._enough()
        everyone = self._everyone()
        task = _task(everyone, labelled, self.settings)
        scheme = agreed_scheme(everyone)
        return task if not scheme else prepared_task(task, scheme, everyone)

    def _other_kind(self, client: Described) -> str | None:
        """Why a raw column does not fit: numbers at most clients, texts at this one, or the other way round."""
        for k, column in enumerate(client.table or ()):
            most = column_kind([c for c in self._everyone() if c.columns == client.columns], k)
            if column.holds not in ("empty", most):
                name = (client.columns or [])[k]
                return one_line(
                    f"client {client.name!r}: column {name!r} holds {column.holds}s, but {most}s at most clients"
                )
        return None


def prepared_task(task: Task, scheme: list[dict[str, Any]], clients: list[Described]) -> Task:
    """The task on prepared inputs; numbers as targets are standardised and told in their own units."""
    task = replace(task, input_shape=(width_of(scheme),))
    scale = agreed_scale(clients) if task.kind == "regression" and task.loss in (None, "mse") else None
    return task if scale is None else replace(task, scale=scale, metrics=("mse", "rmse", "mae", "r2"))


def _task_of(begun: Begun, settings: FederationSettings) -> Task:
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
