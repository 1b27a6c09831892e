"""The roll call: wait for the sites, hear whom they host, agree on a task, and leave out those that do not fit.

A site that says something malformed, claims another's clients or has other inputs than most is excluded with the reason;
the run begins if enough remain.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedkin.engines.flower.agreement import Majority, task_of
from fedkin.engines.flower.called import Called
from fedkin.engines.flower.line import Line
from fedkin.engines.flower.messages import Described, Hello, Join, Sized, one_line, read_head
from fedkin.engines.flower.register import Begun, Register
from fedkin.engines.flower.scheme import agreed_scheme
from fedkin.engines.flower.settings import FederationSettings
from fedkin.engines.flower.setup import SITES, Setup, allowed_model
from fedkin.engines.flower.wire import HEAD_LIMIT, Message
from fedkin.errors import FedkinError
from fedkin.roster import Roster
from fedkin.task import Task
from fedkin.task.choice import chosen


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
        agreed, setup, facts = self._settled(dtype, seed, begun)
        joined = {node: {c.name: facts[c.name].fingerprint for c in own} for node, own in self.told.items()}
        begun = begun or self._begun(facts, agreed, [dict(entry) for entry in setup.inputs])
        self.register.enter(joined, begun)
        return self._called(begun, setup)

    def _settled(self, dtype: str, seed: int, begun: Begun | None) -> tuple[Task, Setup, Mapping[str, Sized]]:
        """The task that all sites agree on, what they are told of the run, and what their clients then say of themselves."""
        balanced = self.learning.get("class_weight") == "balanced"
        asked = {**self.learning, "class_weight": None} if balanced else self.learning
        while True:
            s, agreed = self.settings, self._agreed() if begun is None else task_of(begun, self.settings)
            scheme = agreed_scheme(self._everyone()) if begun is None else begun.inputs
            counted = balanced and agreed.class_weight is None  # a run that goes on has the weights it began with
            how = s.test_fraction, s.validation_fraction, s.split_seed, self.remembers
            setup = Setup(chosen(agreed, **asked), self.model, dtype, seed, *how, inputs=scheme)
            facts = self._join(setup, counted)
            # A site that was excluded on the way may have brought labels of its own.
            if begun is not None or self._agreed() == agreed:
                break
        if counted:
            total = np.sum([client.class_counts or [] for client in facts.values()], axis=0)
            setup = replace(setup, task=chosen(agreed, **self.learning, counts=total))
            agreed = replace(agreed, class_weight=setup.task.class_weight)
        return agreed, setup, facts

    def _called(self, begun: Begun, setup: Setup) -> Called:
        """The roster of a run, and at which site each of its clients is; those of a site that did not answer are away."""
        place = {name: k for k, name in enumerate(begun.names)}
        known = {n: sorted(place[name] for name in own if name in place) for n, own in self.register.sites.items()}
        nodes = sorted((node for node in known if known[node]), key=lambda node: known[node][0])
        train, validation, test = (np.array(part) for part in (begun.train, begun.validation, begun.test))
        source, inputs = {"flower": len(nodes)}, tuple(setup.inputs)
        sizes = train, validation, test
        roster = Roster(tuple(begun.names), setup.task, *sizes, begun.fingerprint, source=source, inputs=inputs)
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

    def _agreed(self) -> Task:
        """The task that most sites' data are for; the others are excluded, named by the client that does not fit."""
        most = Majority.of(self.told.values(), self.settings)
        for node, clients in list(self.told.items()):
            fault = next(filter(None, (most.fault(client, self._everyone()) for client in clients)), None)
            if fault is not None:
                self._exclude(node, fault)
        self._enough()
        return most.task(self._everyone())
