"""Tune: train with one choice of parameters after the other, judge each on folds inside training, keep the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedkin import algorithms
from fedkin.algorithm import Algorithm
from fedkin.errors import FedkinError
from fedkin.federation import Federation
from fedkin.federation.folds import whole_training, without_fold
from fedkin.files import Lock
from fedkin.graphs import ClientGraph
from fedkin.models import ModelLike
from fedkin.result.history import Record
from fedkin.run import Callback, Options, Run, make_options, make_run, with_learning
from fedkin.run.callbacks import round_mean, shows_progress
from fedkin.streams import Streams
from fedkin.tuning.bar import TrialBar
from fedkin.tuning.space import BY_NAME, Space, apart, grid, refuse_bad_values
from fedkin.tuning.storage import KeptTrials, need_optuna
from fedkin.tuning.tuning import Tried, Tuning

if TYPE_CHECKING:
    import optuna

TRIALS = 20
"""Trials where a range is searched and nobody says how many."""
FIRST = 5
"""Trials that no other is stopped for: before them there is nothing to compare with."""
DEFAULT_SPACE = {"lr": "0.003..0.3"}
"""What is searched where nothing is named."""

WatchTrials = Callable[[int, int, int, int, str], None]
"""(trial, trials, round, rounds, the best so far), while trials go on."""


@dataclass(frozen=True)
class Proving:
    """What trials of one study share: the data without their test samples, the method, and how it is judged."""

    federation: Federation
    model: ModelLike
    method: type[Algorithm]
    fixed: Mapping[str, Any]
    space: Space
    options: Options
    graph: ClientGraph | str | None
    folds: int
    used: int

    def score(self, chosen: Mapping[str, Any], report: Callable[[int, float], None]) -> dict[str, Any]:
        """Train on the rest of each fold and judge on it: the means over clients and folds of metric and loss.

        `report(step, value)` follows the training, with the mean over the folds so far.
        """
        metric = f"validation_{self.options.headline}".replace("-", "_")
        given = {"model": self.model, "graph": self.graph} | {k: v for k, v in chosen.items() if k in BY_NAME}
        algorithm = self.method(**{**self.fixed, **{k: v for k, v in chosen.items() if k not in BY_NAME}})
        found: dict[str, list[float]] = {"value": [], "loss": []}
        for fold in range(self.used):
            follow = Follow(metric, algorithm.deploys != "received", tuple(found["value"]), fold, report)
            cut = without_fold(self.federation, self.folds, fold, self.options.seed)
            run = make_run(cut, given["model"], algorithm, self.options, given["graph"], None, [follow])
            result = run.run()
            if not result.facts["finished"]:
                raise KeyboardInterrupt
            for key, name in (("value", metric), ("loss", "validation_loss")):
                found[key].append(_mean(result.metrics["deployed"][name]))
        if not np.isfinite(found["value"]).all():
            raise FedkinError(
                f"no client has a {self.options.headline} on the samples held out; choose another headline"
            )
        return {key: float(np.mean(values)) for key, values in found.items()} | {"folds": found["value"]}


class Follow(Callback):
    """Tells of every evaluated round of a fold how the models do on it."""

    def __init__(
        self, metric: str, trained: bool, before: tuple[float, ...], fold: int, report: Callable[[int, float], None]
    ) -> None:
        self.metric, self.trained, self.before, self.fold, self.report = metric, trained, before, fold, report

    def on_round(self, run: Run, record: Record) -> None:
        when = "post" if self.trained and "post" in record else "pre"
        value = round_mean(record, when, self.metric)
        if value is not None:
            step = self.fold * run.options.rounds + record["round"]
            self.report(step, float(np.mean([*self.before, value])))


def _mean(values: Sequence[float]) -> float:
    known = np.array(values, dtype=float)
    known = known[np.isfinite(known)]
    return float(known.mean()) if len(known) else float("nan")


def tune(
    federation: Federation,
    model: ModelLike = "mlp",
    algorithm: Algorithm | type[Algorithm] | str = "fedavg",
    space: Mapping[str, Any] | None = None,
    trials: int | None = None,
    folds: int = 4,
    used: int = 1,
    graph: ClientGraph | str | None = None,
    out: str | Path | None = None,
    watch: WatchTrials | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Tuning:
    """Search the parameters of a method by trial; test samples are never seen.

    `space` names values, {"mu": [0.01, 0.1]}, or ranges, {"lr": (0.01, 0.3)}, of the method's parameters, of "model" and of
    "graph". Lists alone are tried in every combination, ranges by Optuna (`trials`, 20). Every client cuts its training
    samples into `folds`, of which the first `used` are held out in turn; the headline metric there decides. A trial that does
    worse than the median of others after as many rounds is stopped. `out` keeps trials: the same call goes on where it
    stopped, with the numbers of a search that never stopped. `options` are those of `fedkin.train`.

    >>> from fedkin import data, tune
    >>> found = tune(data.load("digits", clients=4), "mlr", "fedprox", {"mu": [0.0, 1.0]}, rounds=2)  # doctest: +SKIP
    >>> found.best  # doctest: +SKIP
    {'mu': 0.0}
    """
    need_optuna()
    method = algorithms.method_of(algorithm)
    kind = type(method)
    given = {name: getattr(method, name) for name in method.model_fields_set}
    settled, wanted = apart(kind, dict(DEFAULT_SPACE if space is None else space))
    if settled:
        name, value = next(iter(settled.items()))
        raise FedkinError(f"{name} = {value!r} is a single value; list several, give a range (low, high), or set it")
    fixed = {name: value for name, value in given.items() if name not in wanted}
    if fixed.get("privacy") is not None:
        raise FedkinError("privacy is spent anew in every trial; tune without it, then train once with it")
    refuse_bad_values(kind, fixed, wanted)
    if not 1 <= used <= folds or folds < 2:
        raise FedkinError(f"folds = {folds}, used = {used}; cut into at least 2, and hold out at least 1 and not more")
    chosen = make_options(**options)
    federation = with_learning(whole_training(federation), chosen)
    judged = chosen.model_copy(update={"metrics": federation.task.metrics, "headline": federation.task.headline})
    proving = Proving(federation, model, kind, fixed, wanted, judged, graph, folds, used)
    with TrialBar(shows_progress(progress) and watch is None) as bar:
        tried = _search(proving, trials, None if out is None else Path(out), watch or bar)
    found = Tuning(
        kind, fixed, wanted, tuple(tried), federation.task.headline_metric, federation.source, model, graph, chosen
    )
    if out is not None:
        found.save(out)
    return found


def _search(proving: Proving, trials: int | None, out: Path | None, watch: WatchTrials) -> list[Tried]:
    """Try until as many trials are done as were asked for; those kept in `out` are not done again."""
    listed = grid(proving.space)
    wanted = trials or (TRIALS if listed is None else len(listed))
    if listed is not None and wanted < len(listed):
        listed = _some(listed, wanted, proving.options.seed)
    wanted = wanted if listed is None else len(listed)
    if out is None:
        return _go_on(proving, KeptTrials(None, proving_facts(proving)), listed, wanted, watch)
    with Lock(out / "tuning.lock", f"the search in {out}"):
        return _go_on(proving, KeptTrials(out, proving_facts(proving)), listed, wanted, watch)


def _some(listed: list[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """So many of all combinations, drawn; a larger count draws the same and more."""
    order = Streams(seed).generator("tuning", "combinations").permutation(len(listed))
    return [listed[k] for k in order[:count]]


def proving_facts(proving: Proving) -> dict[str, str]:
    """What makes two searches one and the same, as text."""
    named = proving.model if isinstance(proving.model, str) else "custom"
    graph = proving.graph if isinstance(proving.graph, str | None) else "given"
    return {
        "data": proving.federation.fingerprint(),
        "method": proving.method.name,
        "parameters": str(sorted((name, str(value)) for name, value in proving.fixed.items())),
        "space": ", ".join(f"{name} = {entry}" for name, entry in proving.space.items()),
        "model": named,
        "graph": str(graph),
        "folds": f"{proving.used} of {proving.folds}",
        "run": str(
            sorted(proving.options.model_dump(exclude={"workers", "engine", "engine_options"}).items(), key=str)
        ),
    }


def _go_on(
    proving: Proving, kept: KeptTrials, listed: list[dict[str, Any]] | None, wanted: int, watch: WatchTrials
) -> list[Tried]:
    study = kept.study(
        proving.federation.task.headline_metric.larger_is_better, max(1, proving.options.rounds // 5), FIRST
    )
    spread = {name: entry.distribution() for name, entry in proving.space.items()}
    tried = [Tried.read(trial, proving.space) for trial in study.trials]
    for number in range(len(tried), wanted):
        study.sampler = kept.sampler(_seed(proving.options.seed, number), FIRST)
        if listed is not None:
            study.enqueue_trial(listed[number])
        elif number == 0 and (start := _usual(proving)):
            study.enqueue_trial(start)
        trial = study.ask(spread)
        entry = _one(
            proving, trial, number, wanted, watch, Tuning.told_best(tried, proving.federation.task.headline_metric)
        )
        kept.add(study, trial, entry)
        tried.append(Tried.read(study.trials[number], proving.space))
    return tried[:wanted] if listed is not None else tried


def _seed(seed: int, number: int) -> int:
    return int(Streams(seed).generator("tuning", f"trial {number}").integers(2**31))


def _usual(proving: Proving) -> dict[str, Any]:
    """The method's own defaults, where they are inside of what is searched: the first trial, to compare with."""
    fields = proving.method.model_fields
    found = {n: e.drawn(fields[n].default) for n, e in proving.space.items() if n in fields}
    return {name: value for name, value in found.items() if value is not None}


def _one(
    proving: Proving, trial: optuna.Trial, number: int, wanted: int, watch: WatchTrials, best: str
) -> dict[str, Any]:
    """One trial: its value, or why it has none."""
    from optuna import TrialPruned

    rounds = proving.options.rounds * proving.used
    started = time.perf_counter()

    def report(step: int, value: float) -> None:
        trial.report(value, step)
        watch(number, wanted, step, rounds, best)
        if step < rounds and trial.should_prune():
            raise TrialPruned

    watch(number, wanted, 0, rounds, best)
    chosen = {name: entry.value(trial.params[name]) for name, entry in proving.space.items()}
    told: dict[str, Any] = {"state": "complete"}
    try:
        told |= proving.score(chosen, report)
    except TrialPruned:
        told = {"state": "stopped"}
    except FedkinError as problem:  # it diverged, or the parameters do not go together
        told = {"state": "failed", "reason": str(problem)}
    return told | {"seconds": time.perf_counter() - started}
