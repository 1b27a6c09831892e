"""Several algorithms, several seeds, side by side: who does best, and which clients gain against training alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedkin.algorithm import Algorithm
from fedkin.algorithms import make, method_of, with_parameters
from fedkin.comparison.fitness import Fitness
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.files import versions, write_json
from fedkin.graphs import ClientGraph
from fedkin.local.sgd import Sgd
from fedkin.models import ModelLike
from fedkin.notebook import html_table
from fedkin.portfolio.contender import Auto
from fedkin.result import Result, records
from fedkin.result.contenders import ALONE, Contender, Standing, find_alone, line
from fedkin.result.summary import coverage
from fedkin.run import Callback, Options, Run, make_options, make_run, with_learning
from fedkin.streams import parse_seeds

WatchRuns = Callable[[str, int], Sequence[Callback]]
"""Callbacks for the run of an algorithm (its name) with a seed."""


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, and what follows from them."""

    results: tuple[Result, ...]
    listed: tuple[str, ...]
    """The algorithms that were asked for; Local is run for the gains also when it was not."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Algorithms that do not fit this task: name → reason."""
    failed: tuple[Mapping[str, Any], ...] = ()
    """Runs that broke off: algorithm, seed, reason."""

    @property
    def finished(self) -> bool:
        """False if a run was interrupted."""
        return all(result.facts["finished"] for result in self.results)

    def alone(self, result: Result) -> Result:
        """The run of Local with the same seed."""
        seed = result.config["run"]["seed"]
        return next(r for r in self.results if r.algorithm == ALONE and r.config["run"]["seed"] == seed)

    def entries(self) -> list[dict[str, Any]]:
        """One entry per run: its summaries, the gains, every client."""
        table = []
        for result in self.results:
            alone = self.alone(result)
            entry = records.summaries(result) | records.against_alone(result, alone)
            entry |= {
                "listed": result.algorithm in self.listed,
                "clients": records.per_client(result, alone),
                "history": result.history.records,
                "failures": records.failures(result),
                "notes": result.notes,
                "config": {key: value for key, value in result.config.items() if key != "versions"},
            }
            table.append(entry)
        return table

    @cached_property
    def lines(self) -> tuple[Standing, ...]:
        """One line per algorithm, over its seeds: what the table, the page and the JSON say of it."""
        runs: dict[str, list[Result]] = {}
        for result in self.results:
            runs.setdefault(result.algorithm, []).append(result)
        contenders = [Contender(own[0].title, tuple(own)) for own in runs.values()]
        return tuple(line(contender, find_alone(contenders)) for contender in contenders)

    def means(self) -> list[dict[str, Any]]:
        """The lines as plain values, for JSON."""
        return [{**entry.to_dict(), "listed": entry.algorithm in self.listed} for entry in self.lines]

    def _repr_html_(self) -> str:
        shown = [entry for entry in self.lines if entry.algorithm in self.listed] or list(self.lines)
        metric = self.results[0].task.headline_metric
        rows = (
            [
                e.title,
                *(metric.number(e.deployed[part]) for part in ("mean", "worst5")),
                *("–" if v is None else v for v in (e.gained, e.lost)),
            ]
            for e in shown
        )
        missing = coverage(metric.label, shown[0].valued, shown[0].clients)
        notes = [metric.better, *([missing] if missing else [])]
        notes += [f"{name}: {why}" for name, why in self.skipped.items()]
        notes += [f"{run['algorithm']}, seed {run['seed']}: {run['reason']}" for run in self.failed]
        return html_table("Comparison", ("method", metric.heading, "worst 5 %", "gained", "lost"), rows, notes)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "results": self.entries(),
            "means": self.means(),
            "listed": self.listed,
            "skipped": self.skipped,
            "failed": self.failed,
            "versions": versions(),
        }

    def save(self, directory: str | Path) -> Path:
        """Write every run to its own folder, `<algorithm>-seed<k>`, and comparison.json."""
        out = Path(directory)
        for result in self.results:
            result.save(out / cell_name(result.algorithm, result.config["run"]["seed"]))
        write_json(out / "comparison.json", self.to_dict())
        return out

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page about all runs."""
        from fedkin.reports.page import write_report

        return write_report(self.results, Path(path))


def cell_name(algorithm: str, seed: int) -> str:
    return f"{algorithm}-seed{seed}"


def compare(
    federation: Federation | Callable[[int], Federation],
    model: ModelLike,
    algorithms: str | Sequence[Algorithm | type[Algorithm] | Auto | str],
    seeds: int | Sequence[int] = (0, 1, 2),
    graph: ClientGraph | str | None = None,
    out: str | Path | None = None,
    skip_unfit: bool = False,
    watch: WatchRuns = lambda name, seed: (),
    privacy: Mapping[str, Any] | None = None,
    robust: str | None = None,
    **options: Any,
) -> Comparison:
    """Train every algorithm with every seed, and Local for the gains.

    `federation` may be a function of the seed, so that the partition varies with it; `seeds` says which, or how many. With `out` every run is kept in its
    own folder; finished ones are read, not trained again, and interrupted ones go on where they stopped. An algorithm
    that does not fit the task is refused before any training, or left out if `skip_unfit`. A run that breaks off
    (divergence) is noted in `failed` and the others go on. "auto" is listed like a method, or `Auto(effort="quick")`.
    `privacy` is for every method, `robust` for those that mix rows; `options` are those of `fedkin.train`.

    >>> from fedkin import compare, data
    >>> found = compare(data.load("digits", clients=4), "mlr", ["fedavg"], seeds=[0], rounds=2)
    >>> [result.algorithm for result in found.results]
    ['local', 'fedavg']
    """
    listed = [name.strip() for name in algorithms.split(",")] if isinstance(algorithms, str) else algorithms
    given = [Auto() if each == Auto.name else each for each in listed]
    made = [method_of(each) for each in given if not isinstance(each, Auto)]
    if privacy is not None:
        made = [with_parameters(each, privacy=dict(privacy)) for each in made]
    if robust is not None:
        made = [with_parameters(each, robust=robust) if each.couples else each for each in made]
    auto = next((each for each in given if isinstance(each, Auto)), None)
    each_seed = [make_options(**options, seed=seed) for seed in parse_seeds(seeds)]
    folder = None if out is None else Path(out)
    return train_all(federation, model, made, each_seed, graph, folder, skip_unfit, watch, auto)


def train_all(
    federation: Federation | Callable[[int], Federation],
    model: ModelLike,
    algorithms: Sequence[Algorithm],
    options: Sequence[Options],
    graph: ClientGraph | str | None = None,
    out: Path | None = None,
    skip_unfit: bool = False,
    watch: WatchRuns = lambda name, seed: (),
    auto: Auto | None = None,
) -> Comparison:
    """`compare`, with algorithms and options (one for every seed) made; auto, if wanted, comes last."""
    listed = tuple(entry.name for entry in (*algorithms, auto) if entry is not None)
    entrants = _with_local(algorithms, auto)
    results: list[Result] = []
    skipped: dict[str, str] = {}
    failed: list[dict[str, Any]] = []
    for chosen in options:
        clients = with_learning(federation if isinstance(federation, Federation) else federation(chosen.seed), chosen)
        fitness = Fitness(clients, model, chosen, graph)
        if chosen is options[0]:
            folders = {entrant.name: _folder(out, entrant, chosen) for entrant in entrants}
            skipped = fitness.unfit(entrants, folders)
            if skipped and not skip_unfit:
                raise FedkinError(next(f"{name}: {reason}" for name, reason in skipped.items()))
            entrants = [entrant for entrant in entrants if entrant.name not in skipped]
        for entrant in entrants:
            try:
                used, spent = fitness.graph_for(entrant)
                folder, callbacks = _folder(out, entrant, chosen), watch(entrant.name, chosen.seed)
                run = make_run(clients, model, entrant, chosen, used, folder, callbacks)
                run.clients.traffic = replace(spent)
                result = _kept_or_trained(run)
            except FedkinError as problem:
                if entrant.name == ALONE:
                    raise
                failed.append({"algorithm": entrant.name, "seed": chosen.seed, "reason": str(problem)})
                continue
            results.append(result)
            if not result.facts["finished"]:
                return Comparison(tuple(results), listed, skipped, tuple(failed))
        if auto is not None:
            folder = None if out is None else out / cell_name(auto.name, chosen.seed)
            results.append(auto.run(clients, model, chosen, folder))
    comparison = Comparison(tuple(results), listed, skipped, tuple(failed))
    if out is not None:
        write_json(out / "comparison.json", comparison.to_dict())
    return comparison


def _with_local(algorithms: Sequence[Algorithm], auto: Auto | None) -> list[Algorithm]:
    """Local first, whether asked for or not; not asked for, it trains as the first algorithm does: like with like."""
    names = [algorithm.name for algorithm in algorithms]
    if not names and auto is None:
        raise FedkinError("nothing to compare; name at least one method")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FedkinError(f"{twice} is listed twice; compare its variants in two calls and report their runs together")
    local = [algorithm for algorithm in algorithms if algorithm.name == ALONE]
    first = algorithms[0] if algorithms else auto
    assert first is not None
    local = local or [make(ALONE, first.model_dump(include=set(Sgd.model_fields)))]
    return [*local, *(algorithm for algorithm in algorithms if algorithm.name != ALONE)]


def _folder(out: Path | None, algorithm: Algorithm, options: Options) -> Path | None:
    return None if out is None else out / cell_name(algorithm.name, options.seed)


def _kept_or_trained(run: Run) -> Result:
    """The result from the run's folder, if it is finished there; else go on from where it stopped."""
    kept = run.kept()
    if kept is not None:
        run.close()
        return kept
    run.take_up()
    return run.run()
