"""Several methods, several seeds, side by side: who does best, and which clients gain against training alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.files import versions, write_json
from fedkin.graphs import ClientGraph
from fedkin.local.sgd import Sgd
from fedkin.models import ModelLike
from fedkin.result import Result, records
from fedkin.run import Options, Run, make_options, prepare
from fedkin.run.callbacks import Callback

Watch = Callable[[str, int], Sequence[Callback]]
"""Callbacks for the run of a method (its name) with a seed."""


@dataclass(frozen=True)
class Comparison:
    """The runs of a comparison, and what follows from them."""

    results: tuple[Result, ...]
    listed: tuple[str, ...]
    """The methods that were asked for; Local is run for the gains also when it was not."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Methods that do not fit this task: name → reason."""
    failed: tuple[Mapping[str, Any], ...] = ()
    """Runs that broke off: algorithm, seed, reason."""

    @property
    def finished(self) -> bool:
        """False if a run was interrupted."""
        return all(result.facts["finished"] for result in self.results)

    def alone(self, result: Result) -> Result:
        """The run of Local with the same seed."""
        seed = result.config["run"]["seed"]
        return next(r for r in self.results if r.algorithm == "local" and r.config["run"]["seed"] == seed)

    def entries(self) -> list[dict[str, Any]]:
        """One entry per run: the headline numbers, the gains, every client."""
        table = []
        for result in self.results:
            alone = self.alone(result)
            entry = records.headline(result) | records.against_alone(result, alone)
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

    def means(self) -> list[dict[str, Any]]:
        """One line per method: every number of its entries, averaged over seeds, and `seed_std` of the headline mean."""
        lines = []
        entries = self.entries()
        for name in dict.fromkeys(entry["algorithm"] for entry in entries):
            own = [entry for entry in entries if entry["algorithm"] == name]
            metric = own[0]["metric"]
            line = {"algorithm": name, "title": own[0]["title"], "listed": own[0]["listed"], "metric": metric}
            line["seeds"] = [entry["seed"] for entry in own]
            for key in (metric, "pre", "post"):
                line[key] = {part: float(np.mean([entry[key][part] for entry in own])) for part in own[0][key]}
            line["seed_std"] = float(np.std([entry[metric]["mean"] for entry in own]))
            for key in ("gained", "lost", "same", "bytes", "seconds"):
                line[key] = float(np.mean([entry[key] for entry in own]))
            lines.append(line)
        return lines

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


def cell_name(algorithm: str, seed: int) -> str:
    return f"{algorithm}-seed{seed}"


def compare(
    federation: Federation | Callable[[int], Federation],
    model: ModelLike,
    methods: Sequence[Algorithm | str],
    seeds: Sequence[int] = (0, 1, 2),
    graph: ClientGraph | str | None = None,
    out: str | Path | None = None,
    skip_unfit: bool = False,
    watch: Watch = lambda name, seed: (),
    **options: Any,
) -> Comparison:
    """Train every method with every seed, and Local for the gains.

    `federation` may be a function of the seed, so that the partition varies with it. With `out` every run is kept in its
    own folder; finished ones are read, not trained again, and interrupted ones go on where they stopped. A method that
    does not fit the task is refused before any training, or left out if `skip_unfit`. A run that breaks off (divergence)
    is noted in `failed` and the others go on. `options` are those of `fedkin.train`.

    >>> from fedkin import data
    >>> found = compare(data.load("digits", clients=4), "mlr", ["fedavg"], seeds=[0], rounds=2)
    >>> [result.algorithm for result in found.results]
    ['local', 'fedavg']
    """
    wanted = [algorithms.make(method) if isinstance(method, str) else method for method in methods]
    listed = tuple(method.name for method in wanted)
    if not listed:
        raise FedkinError("nothing to compare; name at least one method")
    if "local" not in listed:
        wanted.insert(0, algorithms.make("local", _as_first(wanted[0])))
    wanted.sort(key=lambda method: method.name != "local")
    base = None if out is None else Path(out)
    results: list[Result] = []
    skipped: dict[str, str] = {}
    failed: list[dict[str, Any]] = []
    for seed in seeds:
        clients = federation if isinstance(federation, Federation) else federation(seed)
        chosen = make_options(**options, seed=seed)
        if seed == seeds[0]:
            skipped = dict(_unfit(clients, model, wanted, chosen, graph, base))
            if skipped and not skip_unfit:
                raise FedkinError(next(f"{name}: {reason}" for name, reason in skipped.items()))
        for method in wanted:
            if method.name in skipped:
                continue
            folder = _folder(base, method, seed)
            run = prepare(clients, model, method, chosen, graph, folder, watch(method.name, seed))
            try:
                result = _kept_or_trained(run)
            except FedkinError as problem:
                if method.name == "local":
                    raise
                failed.append({"algorithm": method.name, "seed": seed, "reason": str(problem)})
                continue
            results.append(result)
            if not result.facts["finished"]:
                return Comparison(tuple(results), listed, skipped, tuple(failed))
    comparison = Comparison(tuple(results), listed, skipped, tuple(failed))
    if base is not None:
        write_json(base / "comparison.json", comparison.to_dict())
    return comparison


def _folder(base: Path | None, method: Algorithm, seed: int) -> Path | None:
    return None if base is None else base / cell_name(method.name, seed)


def _as_first(method: Algorithm) -> dict[str, Any]:
    """Local training as the first method does it, so that gains compare like with like."""
    return method.model_dump(include=set(Sgd.model_fields))


def _unfit(
    federation: Federation,
    model: ModelLike,
    methods: Sequence[Algorithm],
    options: Options,
    graph: ClientGraph | str | None,
    base: Path | None,
) -> Iterator[tuple[str, str]]:
    """The methods that refuse this setting, with their reasons. If Local does, the setting itself is wrong.

    Folders that belong to other settings are refused here, too: before anything is trained.
    """
    for method in methods:
        try:
            run = prepare(federation, model, method, options, graph, _folder(base, method, options.seed))
        except FedkinError as problem:
            if method.name == "local":
                raise
            yield method.name, str(problem).removeprefix(f"{method.name}: ")
        else:
            run.close()
            run.refuse_other_settings()


def _kept_or_trained(run: Run) -> Result:
    """The result from the run's folder, if it is finished there; else go on from where it stopped."""
    kept = run.kept()
    if kept is not None:
        run.close()
        return kept
    run.take_up()
    return run.run()
