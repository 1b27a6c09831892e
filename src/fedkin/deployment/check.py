"""`fedkin deploy check`: every site's columns, target, classes, versions, clock, certificate and disk; all faults at once.

A Flower run that trains nothing: the ServerApp asks the sites that are connected, compares them, and prints what it found as
one line of JSON (after CHECK_MARK), which the command reads out of Flower's log.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedkin.engines.flower.agreement import most_frequent
from fedkin.engines.flower.condition import ClientCondition, Condition, certificate_ends, installed_versions
from fedkin.engines.flower.line import Line
from fedkin.engines.flower.messages import one_line, read_head
from fedkin.engines.flower.settings import FederationSettings
from fedkin.engines.flower.wire import HEAD_LIMIT, Message
from fedkin.errors import FedkinError

CHECK_MARK = "fedkin-check "
CLOCK_SECONDS = 30.0
"""A clock may be so far from the server's: Flower refuses messages whose time is further off."""
DISK_LEAST, DISK_FEW = 100 * 2**20, 2**30
CERTIFICATE_DAYS = 30
DAY = 86400.0


@dataclass
class Checkup:
    """What was found: a row per client, what is wrong, and what is only worth knowing."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        """As the server prints it."""
        return CHECK_MARK + json.dumps(asdict(self))

    @classmethod
    def found_in(cls, text: str) -> Checkup | None:
        """Out of a line of Flower's log, if it holds one."""
        _, mark, told = text.partition(CHECK_MARK)
        try:
            return cls(**json.loads(told)) if mark else None
        except (ValueError, TypeError):
            return None


def check_sites(line: Line, settings: FederationSettings, wait: float, certificates: Path | None = None) -> Checkup:
    """Ask every site that is there within `wait` seconds; nobody is trained, nothing is kept."""
    nodes = _connected(line, settings.sites, wait)
    asked = time.time()
    message = Message({"kind": Condition.kind, **({"prepare": True} if settings.prepare else {})})
    told = line.send(dict.fromkeys(nodes, message), dict.fromkeys(nodes, HEAD_LIMIT), settings.timeout) if nodes else {}
    answered = time.time()
    found = Checkup()
    if len(nodes) < settings.sites:
        found.faults.append(
            f"{len(nodes)} of {settings.sites} sites are connected after {wait:g} s; start the others (sites/NAME/start.sh), "
            "and register their keys"
        )
    heard: dict[int, Condition] = {}
    for node, got in told.items():
        try:
            if isinstance(got, str):
                raise FedkinError(got)
            heard[node] = read_head(Condition, got)
        except FedkinError as problem:
            found.faults.append(f"the site at node {node}: {one_line(problem)}")
    ends = None if certificates is None else certificate_ends(certificates / "server.pem")
    _of_certificate(found, "server", ends, answered)
    for site in heard.values():
        _of_machine(found, site, asked, answered)
    _of_clients(found, heard.values(), settings)
    for site in sorted(heard.values(), key=lambda one: one.site):
        found.rows += [_row(site, client, asked, answered) for client in site.clients]
    return found


def _connected(line: Line, sites: int, wait: float) -> list[int]:
    end = time.monotonic() + wait
    while len(nodes := line.nodes()) < sites and time.monotonic() < end:
        time.sleep(0.5)
    return nodes


def _row(site: Condition, client: ClientCondition, asked: float, answered: float) -> dict[str, Any]:
    told = client.described
    labels = None if told is None else told.labels
    days = None if site.certificate_ends is None else int((site.certificate_ends - answered) // DAY)
    return {
        "site": site.site,
        "client": client.name,
        "samples": client.samples,
        "inputs": None if told is None else list(told.input_shape),
        "target": client.target,
        "classes": None if labels is None else [str(label) for label in labels],
        "versions": site.versions,
        "clock": round(_clock_off(site, asked, answered), 1),
        "certificate_days": days,
        "disk": site.disk,
        "faults": len(client.faults),
    }


def _clock_off(site: Condition, asked: float, answered: float) -> float:
    """Seconds that a site's clock is ahead (+) or behind (−): 0 between the question and the answer."""
    return max(site.clock - answered, 0.0) - max(asked - site.clock, 0.0)


def _of_machine(found: Checkup, site: Condition, asked: float, answered: float) -> None:
    who = f"site {site.site!r}"
    found.faults += [f"{who}: {fault}" for fault in site.faults]
    off = _clock_off(site, asked, answered)
    if abs(off) > CLOCK_SECONDS:
        found.faults.append(
            f"{who}: its clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the server's; set it"
        )
    if site.disk < DISK_FEW:
        line = f"{who}: {site.disk / 2**20:.0f} MB are free on its disk"
        (found.faults if site.disk < DISK_LEAST else found.notes).append(f"{line}; make room")
    _of_certificate(found, who, site.certificate_ends, answered)
    for package, mine in installed_versions().items():
        theirs = site.versions.get(package, "none")
        if theirs != mine:
            line = f"{who}: {package} {theirs}, but {mine} on the server"
            (found.faults if package == "fedkin" else found.notes).append(f"{line}; install the same")


def _of_certificate(found: Checkup, who: str, ends: float | None, now: float) -> None:
    if ends is not None and ends < now:
        found.faults.append(f"{who}: the certificate has ended; get a new one (fedkin deploy certificates, for tests)")
    elif ends is not None and ends - now < CERTIFICATE_DAYS * DAY:
        found.notes.append(f"{who}: the certificate ends in {int((ends - now) // DAY)} days")


def _of_clients(found: Checkup, sites: Iterable[Condition], settings: FederationSettings) -> None:
    """What is wrong with clients, and with how they fit each other; `most` is what most of them have."""
    clients = [client for site in sites for client in site.clients]
    found.faults += [f"client {client.name!r}: {fault}" for client in clients for fault in client.faults]
    twice = [name for name, count in Counter(client.name for client in clients).items() if count > 1]
    found.faults += [f"client {name!r} is at two sites; give every client its own name" for name in twice]
    fit = [client for client in clients if client.described is not None]
    if not fit:
        return
    columns = most_frequent(tuple(client.described.columns or ()) for client in fit if client.described)
    shape = most_frequent(tuple(client.described.input_shape) for client in fit if client.described)
    labelled = settings.task == "classification" or (
        settings.task is None
        and most_frequent(client.described.labels is not None for client in fit if client.described)
    )
    target = most_frequent(client.target for client in fit)
    for client in fit:
        who = f"client {client.name!r}"
        found.faults += [f"{who}: {fault}" for fault in _misfits(client, columns, shape, labelled, settings)]
        labels = client.described.labels if client.described else None
        if labelled and labels is not None and len(labels) == 1:
            found.notes.append(f"{who} holds one class only: {labels[0]!r}")
        if client.target != target:
            found.notes.append(f"{who} predicts {client.target!r}, most others {target!r}; is it the same?")
    found.faults += _of_classes(fit, labelled, settings)


def _misfits(
    client: ClientCondition,
    columns: tuple[str, ...],
    shape: tuple[int, ...],
    labelled: bool,
    settings: FederationSettings,
) -> Iterator[str]:
    told = client.described
    assert told is not None
    mine = tuple(told.columns or ())
    if mine != columns:
        lacks, more = [c for c in columns if c not in mine], [c for c in mine if c not in columns]
        if lacks:
            yield f"lacks columns that most have: {', '.join(map(repr, lacks))}"
        if more:
            yield f"has columns that most have not: {', '.join(map(repr, more))}; put them in drop"
        if not lacks and not more:
            yield f"has the columns in another order; it must be {', '.join(columns)}"
    elif tuple(told.input_shape) != shape:
        yield f"has inputs of shape {list(told.input_shape)}, most have {list(shape)}"
    if labelled and told.labels is None:
        yield "has real numbers as targets, where most have labels; is it the right target?"
    elif not labelled and told.labels is not None and any(isinstance(label, str) for label in told.labels):
        yield "has texts as targets, where most have numbers; is it the right target?"
    elif labelled and settings.classes is not None:
        strange = [label for label in told.labels or () if label not in settings.classes]
        if strange:
            yield f"holds labels that are not among classes: {', '.join(map(repr, strange[:5]))}"


def _of_classes(fit: list[ClientCondition], labelled: bool, settings: FederationSettings) -> Iterator[str]:
    known: list[Mapping[str, Any] | Any] = [c.described.labels for c in fit if c.described and c.described.labels]
    if not labelled or not known:
        return
    if len({isinstance(label, str) for labels in known for label in labels}) > 1:
        yield "some clients have numbers as labels, others text; use one kind"
    elif len({label for labels in known for label in labels}) < 2 and settings.classes is None:
        yield "all clients hold a single class; classification needs at least two"
