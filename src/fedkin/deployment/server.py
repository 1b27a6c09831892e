"""The Flower ServerApp: find the sites, agree on the task, and let an ordinary `Run` do the rest.

Settings are a TOML file on the server (run config: settings="…/federation.toml", out="…/result"):

    [federation]                sites, wait, timeout, task, classes, test_fraction, validation_fraction, split_seed
    [federation.forecast]       mean, std, every, missing, told: targets are z-scores of a series (missing = inf: none is)
    [model]  [algorithm]  [graph]  [run]       as for fedkin run

A run that finds a checkpoint in `out` goes on from it.
"""

from __future__ import annotations

import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.engines.flower.clients import FlowerClients
from fedkin.engines.flower.line import Line
from fedkin.engines.flower.setup import SITES, Setup, models_of, resolve
from fedkin.engines.flower.wire import HEAD_LIMIT, Message
from fedkin.errors import FedkinError, first_fault, unknown
from fedkin.graphs import ClientGraph
from fedkin.result import Result
from fedkin.result.export import card
from fedkin.roster import Roster
from fedkin.run import Run, checkpoint
from fedkin.run.callbacks import Callback
from fedkin.run.options import Options, make_options
from fedkin.task import Forecast, Task
from fedkin.task.choice import chosen

FILE_SECTIONS = ("federation", "model", "algorithm", "graph", "run")


class FederationSettings(BaseModel):
    """Who takes part, and how each site splits its data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sites: int = Field(ge=1, description="how many sites must be there to begin")
    wait: float = Field(300.0, gt=0, description="seconds to wait for them")
    timeout: float = Field(600.0, gt=0, description="seconds a site may take for one answer")
    task: Literal["classification", "regression"] | None = None
    classes: list[str | int] | None = None
    test_fraction: float = Field(0.25, ge=0, lt=1)
    validation_fraction: float = Field(0.0, ge=0, lt=1)
    split_seed: int = Field(0, ge=0)
    forecast: Forecast | None = None
    """Targets are z-scores of a series: its mean and std, minutes between values, the value that means none."""


@dataclass(frozen=True)
class FederationFile:
    """What to train, as federation.toml has it."""

    federation: FederationSettings
    model: str
    algorithm: Algorithm
    graph: str | None
    options: Options

    @classmethod
    def read(cls, path: Path, **changes: Any) -> FederationFile:
        """From a file; `changes` (rounds, algorithm) come from flwr run --run-config, where they are not empty."""
        try:
            sections = tomllib.loads(path.read_text())
        except OSError as problem:
            raise FedkinError(f"{path} cannot be read: {problem.strerror}") from problem
        except tomllib.TOMLDecodeError as problem:
            raise FedkinError(f"{path} is not valid TOML: {problem}") from problem
        for name in sections:
            if name not in FILE_SECTIONS:
                raise unknown(f"section in {path}", name, FILE_SECTIONS)
        try:
            federation = FederationSettings(**sections.get("federation", {}))
        except ValidationError as problem:
            raise FedkinError(first_fault("federation", problem)) from problem
        method = dict(sections.get("algorithm", {"name": "fedavg"}))
        if changes.get("algorithm") and changes["algorithm"] != method.get("name"):
            method = {"name": changes["algorithm"]}
        run = {**sections.get("run", {}), **({"rounds": changes["rounds"]} if changes.get("rounds") else {})}
        graph = sections.get("graph", {})
        given = graph.get("name") or (str(path.parent / graph["file"]) if "file" in graph else None)
        algorithm = algorithms.make(str(method.pop("name", "fedavg")), method)
        options = make_options(**{**run, "engine": "flower"})
        return cls(federation, str(sections.get("model", {}).get("name", "mlp")), algorithm, given, options)


def train_sites(line: Line, plan: FederationFile, out: Path, callbacks: tuple[Callback, ...] = ()) -> Result:
    """Train over the sites on a line; the result is written to `out`, every site's models to its own disk."""
    roster, members, nodes, setup, own = assemble(line, plan)
    model: Any = models_of(own) if plan.model == SITES else resolve(plan.model)

    spec = plan.algorithm.model_spec(model, roster.names, roster.task, getattr(torch, plan.options.dtype))
    clients = FlowerClients(line, roster, members, nodes, spec, setup, plan.federation.timeout)
    run = Run(roster, clients, spec, plan.algorithm, plan.options, _graph_of_run(plan, out), out, callbacks)
    run.take_up()
    result = run.run()
    cards = {name: card(result, k, []) for k, name in enumerate(result.names)}
    for name, reason in clients.deploy(cards).items():
        print(f"client {name!r} has not written its model: {reason}")
    return result


def _graph_of_run(plan: FederationFile, out: Path) -> ClientGraph | str | None:
    """A run that goes on keeps the graph it was started with."""
    if checkpoint.latest(out) is not None and (out / "graph.npz").exists():
        return ClientGraph.load(out / "graph.npz")
    return plan.graph


# --- who is there -----------------------------------------------------------------------------------------------------


def assemble(
    line: Line, plan: FederationFile
) -> tuple[Roster, list[np.ndarray], list[int], Setup, dict[str, str | None]]:
    """Wait for the sites, let them say whom they host, and check that all of it fits together."""
    told = _hello(line, plan.federation)
    clients = {client["name"]: client for site in told.values() for client in site}
    nodes = sorted(told, key=lambda node: min(client["name"] for client in told[node]))
    names = tuple(client["name"] for node in nodes for client in told[node])
    if len(set(names)) != len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise FedkinError(f"client {twice!r} is at two sites; give every client its own name")
    own = {name: clients[name].get("model") for name in names}
    settings, options = plan.federation, plan.options
    setup = Setup(
        chosen(_agreed_task(clients, settings), **options.learning),
        plan.model,
        options.dtype,
        options.seed,
        settings.test_fraction,
        settings.validation_fraction,
        settings.split_seed,
        plan.algorithm.remembers,
    )
    joined = _ask_all(line, nodes, {"kind": "join", "setup": setup.told()}, settings.timeout)
    facts = {client["name"]: client for site in joined.values() for client in site}
    train, validation, test = (np.array([int(facts[n][p]) for n in names]) for p in ("train", "validation", "test"))
    told_data = json.dumps([names, [str(facts[name]["fingerprint"]) for name in names]]).encode()
    fingerprint = hashlib.blake2b(told_data, digest_size=12).hexdigest()
    roster = Roster(names, setup.task, train, validation, test, fingerprint, source={"flower": len(nodes)})
    place = {name: k for k, name in enumerate(names)}
    members = [np.array([place[client["name"]] for client in told[node]]) for node in nodes]
    return roster, members, nodes, setup, own


def _hello(line: Line, settings: FederationSettings) -> dict[int, list[dict[str, Any]]]:
    end = time.monotonic() + settings.wait
    told: dict[int, list[dict[str, Any]]] = {}
    while True:
        new, late = [node for node in line.nodes() if node not in told], time.monotonic() > end
        if late or len(told) + len(new) >= settings.sites:  # all at once: an answer takes seconds
            told |= _ask_all(line, new, {"kind": "hello"}, settings.timeout)
        if len(told) >= settings.sites:
            return told
        if late:
            known = ", ".join(client["name"] for site in told.values() for client in site) or "none"
            raise FedkinError(
                f"{len(told)} of {settings.sites} sites were there after {settings.wait:g} s (clients: {known})"
            )
        time.sleep(1)


def _ask_all(line: Line, nodes: list[int], head: Mapping[str, Any], timeout: float) -> dict[int, list[dict[str, Any]]]:
    """The clients every node tells of; a node that refuses is named with its reason."""
    if not nodes:
        return {}
    found = line.send(dict.fromkeys(nodes, Message(head)), dict.fromkeys(nodes, HEAD_LIMIT), timeout)
    for node, got in found.items():
        reason = got if isinstance(got, str) else got.head.get("refused")
        if reason:
            raise FedkinError(f"the site at node {node} cannot take part: {reason}")
    return {node: list(got.head["clients"]) for node, got in found.items() if isinstance(got, Message)}


def _agreed_task(clients: Mapping[str, Mapping[str, Any]], settings: FederationSettings) -> Task:
    """One task for all, or an error that names the client that does not fit."""
    first_name, first = next(iter(clients.items()))
    kind = settings.task or ("classification" if "labels" in first else "regression")
    labels: set[Any] = set()
    for name, client in clients.items():
        for key, what in (
            ("input_shape", "inputs of shape"),
            ("columns", "columns"),
            ("output_shape", "targets of shape"),
        ):
            if client.get(key) != first.get(key):
                raise FedkinError(
                    f"client {name!r} has {what} {client.get(key)}, but {first_name!r} has {first.get(key)}; "
                    "all clients need the same"
                )
        if kind == "classification" and "labels" not in client:
            raise FedkinError(f"client {name!r} has real numbers as targets, but {first_name!r} has labels")
        labels |= set(client.get("labels", []))
    inputs = tuple(int(n) for n in first["input_shape"])
    if kind == "regression":
        outputs = tuple(int(n) for n in first["output_shape"])
        if settings.forecast is not None and len(outputs) != 1:
            raise FedkinError(f"forecast: targets must be series of shape (steps,), but {first_name!r} has {outputs}")
        return Task("regression", inputs, output_shape=outputs, forecast=settings.forecast)
    if settings.forecast is not None:
        raise FedkinError(f"forecast: client {first_name!r} has labels; a forecast needs numbers as targets")
    if len({type(label) for label in labels}) > 1:
        raise FedkinError("some clients have numbers as labels, others text; use one kind")
    known = tuple(settings.classes or sorted(labels))
    strange = sorted(labels - set(known))
    if strange:
        owner = next(name for name, client in clients.items() if strange[0] in client["labels"])
        raise FedkinError(f"client {owner!r} holds label {strange[0]!r}, which is not among the classes {list(known)}")
    if len(known) < 2:
        raise FedkinError(f"all clients hold the single class {list(known)}; classification needs at least two")
    return Task("classification", inputs, classes=known)


def serve(grid: Any, context: Any, report: Callable[[str], None] = print) -> None:
    """What the ServerApp does when flwr run starts it."""
    from fedkin.engines.flower.line import GridLine

    config = context.run_config
    plan = FederationFile.read(
        Path(str(config["settings"])), rounds=config.get("rounds"), algorithm=config.get("algorithm")
    )
    result = train_sites(GridLine(grid), plan, Path(str(config["out"])), (Told(report),))
    report(f"{result!r} in {config['out']}")


class Told(Callback):
    """One line per round in Flower's log."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report

    def on_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        failed = ", ".join(f"{name} ({reason})" for name, reason in record["log"].get("failed", {}).items())
        self.report(f"round {record['round']} of {run.options.rounds}{'; failed: ' + failed if failed else ''}")
        return False
