"""Several methods, several seeds, side by side: who does best, and which clients gain against training alone."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedkin import algorithms, checkpoint, records
from fedkin.algorithm import Algorithm
from fedkin.callbacks import Callback
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.files import versions, write_json
from fedkin.graphs import ClientGraph
from fedkin.local.sgd import Sgd
from fedkin.models import ModelLike
from fedkin.options import Options, make_options
from fedkin.result import Result, load
from fedkin.run import Run

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
            run = Run(clients, model, method, chosen, graph, folder, watch(method.name, seed))
            kept = _take_up(run, model)
            try:
                result = run.run() if kept is None else kept
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
            run = Run(federation, model, method, options, graph, _folder(base, method, options.seed))
        except FedkinError as problem:
            if method.name == "local":
                raise
            yield method.name, str(problem).removeprefix(f"{method.name}: ")
        else:
            run.clients.close()
            _refuse_other_settings(run)


def _take_up(run: Run, model: ModelLike) -> Result | None:
    """The result, if the run's folder holds it finished; else None, with the run brought to its last checkpoint."""
    _refuse_other_settings(run)
    if run.out is None:
        return None
    if (run.out / "result.safetensors").exists():
        result = load(run.out, model)
        if result.facts["finished"]:
            run.clients.close()
            return result
    path = checkpoint.latest(run.out)
    if path is not None:
        run.go_back_to(path)
    return None


def _refuse_other_settings(run: Run) -> None:
    """A folder belongs to one setting: never mix results of two."""
    out = run.out
    if out is None or not (out / "config.toml").exists():
        return
    stored = tomllib.loads((out / "config.toml").read_text())
    ours = tomllib.loads(tomli_w.dumps(run.config()))
    for section in ("data", "model", "algorithm", "run"):
        before, now = stored.get(section, {}), ours[section]
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                was, wanted = before.get(key, "unset"), now.get(key, "unset")
                raise FedkinError(
                    f"{out} holds a run with {section}.{key} = {was}, now it is {wanted}; choose another --out"
                )
    graph = ClientGraph.load(out / "graph.npz") if (out / "graph.npz").exists() else None
    if graph != run.setting.graph:
        raise FedkinError(f"{out} holds a run with another graph; choose another --out")
