"""The Flower ServerApp: find the sites, agree on the task, and let an ordinary `Run` do the rest.

Settings are a TOML file on the server (run config: settings="…/federation.toml", out="…/result"):

    [federation]                sites, wait, timeout, task, classes, test_fraction, validation_fraction, split_seed,
                                prepare, accept, accept_changes, owners, most_samples, update_limit
    [federation.forecast]       mean, std, every, missing, told: targets are z-scores of a series (missing = inf: none is)
    [model]                     name; with name = "sites" also allowed: the models that clients may bring
    [algorithm]  [graph]  [run]       as for fedkin run

A run that finds a checkpoint in `out` goes on from it.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.clients import Clients
from fedkin.deployment.check import check_sites
from fedkin.engines.flower.called import Called, in_folds, those_sites
from fedkin.engines.flower.clients import FlowerClients
from fedkin.engines.flower.line import Line
from fedkin.engines.flower.register import Register
from fedkin.engines.flower.roll import Roll
from fedkin.engines.flower.settings import FederationSettings
from fedkin.engines.flower.setup import SITES, models_of, resolve
from fedkin.errors import FedkinError, first_fault, unknown
from fedkin.files import read_text
from fedkin.graphs import ClientGraph
from fedkin.models import ModelSpec
from fedkin.models.frozen import frozen_hash
from fedkin.portfolio.auto import combined, refuse_unfit
from fedkin.portfolio.contender import Auto
from fedkin.portfolio.effort import EFFORTS
from fedkin.portfolio.grown import grown
from fedkin.portfolio.join import joined_by, refuse_strange, spec_of_run
from fedkin.reports.wording import duration
from fedkin.result import Result, load
from fedkin.result.combined import Parts
from fedkin.result.export import card
from fedkin.result.history import Record
from fedkin.result.stored import read_config
from fedkin.roster import Roster
from fedkin.run import Run, checkpoint, judging
from fedkin.run.callbacks import Callback, round_mean
from fedkin.run.earlier import Earlier
from fedkin.run.model import model_of_run
from fedkin.run.options import Options, make_options

FILE_SECTIONS = ("federation", "model", "algorithm", "graph", "run")


@dataclass(frozen=True)
class FederationFile:
    """What to train, as federation.toml has it."""

    federation: FederationSettings
    model: str
    allowed: list[str]
    """Models that clients may bring; empty: all of fedkin's own."""
    algorithm: Algorithm | Auto
    graph: str | None
    options: Options

    @classmethod
    def read(cls, path: Path, **changes: Any) -> FederationFile:
        """From a file; `changes` (rounds, algorithm) come from flwr run --run-config, where they are not empty."""
        try:
            sections = tomllib.loads(read_text(path))
        except tomllib.TOMLDecodeError as problem:
            raise FedkinError(f"{path} is not valid TOML: {problem}") from problem
        for name in sections:
            if name not in FILE_SECTIONS:
                raise unknown(f"section in {path}", name, FILE_SECTIONS)
            if not isinstance(sections[name], dict):
                raise FedkinError(f"{path}: {name} is no section; write [{name}] and its settings below")
        federation = read_section("federation", FederationSettings, sections.get("federation", {}))
        method = dict(sections.get("algorithm", {"name": "fedavg"}))
        if changes.get("algorithm") and changes["algorithm"] != method.get("name"):
            method = {"name": changes["algorithm"]}
        run = {**sections.get("run", {}), **({"rounds": changes["rounds"]} if changes.get("rounds") else {})}
        graph = read_section("graph", GraphSection, sections.get("graph", {}))
        given = graph.name or (str(path.parent / graph.file) if graph.file else None)
        name = str(method.pop("name", "fedavg"))
        algorithm = Auto(**method) if name == Auto.name else algorithms.make(name, method)
        options = make_options(**{**run, "engine": "flower"})
        if options.range_test:
            raise FedkinError("[run] range_test: sites are not asked for trials; leave it out, or tune on data at hand")
        if (options.device, options.precision) != ("cpu", "float32"):
            raise FedkinError("Flower sites compute on the CPU in float32; leave device and precision out of [run]")
        model = read_section("model", ModelSection, sections.get("model", {}))
        return cls(federation, model.name, model.allowed, algorithm, given, options)


class ModelSection(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str = "mlp"
    allowed: list[str] = []


class GraphSection(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str | None = None
    file: str | None = None


SectionT = TypeVar("SectionT", bound=BaseModel)


def read_section(name: str, schema: type[SectionT], section: Mapping[str, Any]) -> SectionT:
    """A section of federation.toml by its schema; one line names the setting that does not fit."""
    try:
        return schema.model_validate(dict(section))
    except ValidationError as problem:
        raise FedkinError(first_fault(name, problem)) from problem


def train_sites(
    line: Line, plan: FederationFile, out: Path, callbacks: tuple[Callback, ...] = (), start: Path | None = None
) -> Result:
    """Train over the sites on a line; the result is written to `out`, every site's models to its own disk.

    `start` is the result of an earlier run of this federation, perhaps with fewer or more sites: its rows, its graph and the
    private state that sites keep of it are where this one begins. Where that was auto, sites which it did not have join it: they get
    models without a round of the others, and the result is the earlier one with them in it.
    """
    register = Register.read(out, plan.federation.accept, plan.federation.owners)
    memory = None if isinstance(plan.algorithm, Auto) else plan.algorithm.remembers
    roll = Roll(line, plan.federation, register, plan.model, plan.allowed, plan.options.learning, memory)
    called = roll.call(plan.options.dtype, plan.options.seed, resumed=checkpoint.latest(out) is not None)
    model: Any = models_of(called.own) if plan.model == SITES else resolve(plan.model)
    roster = called.roster
    if isinstance(plan.algorithm, Auto):
        if start is not None:
            return _joining(line, plan, called, register, out, load(start))
        return _auto(line, plan, plan.algorithm, called, register, out)
    began = (out, read_config(out)) if checkpoint.latest(out) is not None else None
    spec = model_of_run(plan.algorithm, model, roster.names, roster.task, plan.options, began)
    told = frozen_hash(spec.frozen)
    setup = replace(called.setup, frozen=plan.options.frozen, frozen_sha256=told, caches=spec.caches)
    called = replace(called, setup=setup)
    clients = FlowerClients(line, called, spec, register, plan.federation)
    earlier = None if start is None else Earlier.read(start)
    if earlier is not None:
        if earlier.algorithm == plan.algorithm.name and earlier.layout == spec.layout:
            clients.adopt(earlier.private)
        earlier = replace(earlier, private={})
    graph = _graph_of_run(plan, out, start)
    run = Run(roster, clients, spec, plan.algorithm, plan.options, graph, out, callbacks, earlier)

    def held() -> tuple[Roster, Clients]:
        further = in_folds(called, judging.JUDGING_FOLDS, 1, plan.options.seed, whole=False)
        return further.roster, FlowerClients(line, further, spec, register, plan.federation, registered=called)

    if judging.is_wanted(roster, plan.algorithm, plan.options, earlier):
        run.judging = lambda: judging.judge_of(run, held)
    run.take_up(plan.federation.accept_changes)
    return _deployed(clients, run.run())


def _deployed(clients: FlowerClients, result: Result) -> Result:
    """Have the sites write the clients' models to their own disks."""
    cards = {name: card(result, k, []) for k, name in enumerate(result.names)}
    parts = Parts.read(result.extras, len(result.names))
    combined = None if parts is None else {name: parts.of_client(k) for k, name in enumerate(result.names)}
    for name, reason in clients.deploy(cards, combined).items():
        print(f"client {name!r} has not written its model: {reason}")
    return result


def _auto(line: Line, plan: FederationFile, method: Auto, called: Called, register: Register, out: Path) -> Result:
    """auto over the sites: members are trained in their clients' folds, then everybody's combination is tested once."""
    roster, options = called.roster, plan.options
    refuse_unfit(roster)
    if plan.model == SITES:
        raise FedkinError("auto over sites needs one model for all clients; name it in [model]")
    spec = ModelSpec.of(resolve(plan.model), roster.task, getattr(torch, options.dtype))
    count, used = EFFORTS[method.effort].cut(roster.train + roster.validation)
    further = in_folds(called, count, used, options.seed)
    cut = FlowerClients(line, further, spec, register, plan.federation, registered=called)
    tested = FlowerClients(line, called, spec, register, plan.federation)
    told = lambda member, round, rounds: print(f"{member}: round {round} of {rounds}")  # noqa: E731
    how = spec, options, method.effort, used, method.training(), out, told, method.distil
    return _deployed(tested, combined(cut, tested, roster, *how))


def _joining(
    line: Line, plan: FederationFile, called: Called, register: Register, out: Path, earlier: Result
) -> Result:
    """Sites that came after a run of auto: their clients are its newcomers; nobody else is asked anything."""
    known, names = set(earlier.names), called.roster.names
    new = [place for place, own in enumerate(called.members) if not known & {names[k] for k in own}]
    if not new:
        raise FedkinError(
            f"no site is new to {earlier.title}; newcomers come with sites of their own (fedkin deploy add-site), and a run of "
            "all begins without start"
        )
    come = those_sites(called, new)
    refuse_strange(earlier, come.roster)
    options = plan.options.model_copy(update={"rounds": earlier.facts["rounds"]})
    spec = spec_of_run(earlier, resolve(plan.model), come.roster.task, options)
    count, used = EFFORTS[str(earlier.config["algorithm"]["effort"])].cut(come.roster.train + come.roster.validation)
    how = spec, register, plan.federation
    cut = FlowerClients(line, in_folds(come, count, used, options.seed), *how, registered=come)
    tested = FlowerClients(line, come, *how)
    joined = joined_by(earlier, cut, tested, come.roster, spec, options, used)
    grown(earlier, joined).save(out)
    return _deployed(tested, joined)


def _graph_of_run(plan: FederationFile, out: Path, start: Path | None = None) -> ClientGraph | str | None:
    """A run that goes on keeps the graph it was started with, as does one that begins from it and builds none of its own."""
    if checkpoint.latest(out) is not None and (out / "graph.npz").exists():
        return ClientGraph.load(out / "graph.npz")
    if start is not None and plan.graph is None and (start / "graph.npz").exists():
        return ClientGraph.load(start / "graph.npz")
    return plan.graph


def serve(grid: Any, context: Any, report: Callable[[str], None] = print) -> None:
    """What the ServerApp does when flwr run starts it."""
    from fedkin.engines.flower.line import GridLine

    config = context.run_config
    settings = Path(str(config["settings"]))
    plan = FederationFile.read(settings, rounds=config.get("rounds"), algorithm=config.get("algorithm"))
    if config.get("check"):
        wait = float(config.get("wait") or plan.federation.wait)
        report(check_sites(GridLine(grid), plan.federation, wait, settings.parent / "certificates").line())
        return
    start = Path(str(config["start"])) if config.get("start") else None
    result = train_sites(GridLine(grid), plan, Path(str(config["out"])), (LiveLog(report),), start)
    report(f"{result!r} in {config['out']}")


class LiveLog(Callback):
    """One line per round in Flower's log: the metric where it was measured, the time left, who is missing and why."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report = report

    def on_start(self, run: Run) -> None:
        self.started, self.first = time.monotonic(), run.state.round

    def on_round(self, run: Run, record: Record) -> bool:
        number, rounds, metric = record["round"], run.options.rounds, run.setting.task.headline_metric
        parts = [f"round {number} of {rounds}"]
        means = {when: round_mean(record, when, f"test_{metric.key}") for when in ("pre", "post") if when in record}
        parts += [f"{metric.label} {when} {metric.amount(mean)}" for when, mean in means.items()]
        if number < rounds:
            took = (time.monotonic() - self.started) / max(number - self.first, 1)
            parts.append(f"{duration(took * (rounds - number))} left")
        failed = record["log"].get("failed", {})
        parts += ["missing: " + ", ".join(f"{name} ({why})" for name, why in failed.items())] if failed else []
        self.report("; ".join(parts))
        return False
